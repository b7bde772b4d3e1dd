"""Search in the texts of one run, on a server and in an exported file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, tool
from rxloop.server.viewer.document import make_file
from rxloop.testing import ScriptedModel, call
from support.browser import expect, find_barriers, until
from support.hidden_tools import MARK, peek
from support.viewer_pages import find_filter, find_inspector, find_rows, get_text, make_guide, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

_MARKED = "[...CSS.highlights.get('match') ?? []].map(each => each.toString())"


async def check_matches(page: Page, url: str, task_id: str) -> None:
    """Step through the texts that contain "before noon"."""
    await page.goto(f"{url}#/r/{task_id}")
    await expect(find_rows(page, "Waterfall").first).to_be_visible()
    await page.keyboard.press("/")
    await page.keyboard.type("Before NOON")
    bar = page.locator(".matchbar")
    await expect(bar.get_by_role("status")).to_have_text(re.compile(r"^\d+ texts$"))
    count = int((await bar.get_by_role("status").inner_text()).split()[0])
    seqs: list[int] = []
    for number in range(1, count + 1):
        await page.keyboard.press("Enter")
        await expect(bar.get_by_role("status")).to_contain_text(f"{number} of {count} texts")
        found = re.search(r"at=1\.(\d+)\.0", page.url)
        assert found
        seqs.append(int(found[1]))
        await expect(bar.locator("mark").first).to_have_text(re.compile("^before noon$", re.IGNORECASE))
        await expect(bar.get_by_role("status")).to_contain_text(f"event {seqs[-1]}")
    assert seqs == sorted(seqs)
    # The text of a thought is not part of its row.
    shown = " ".join(await get_text(find_rows(page, "Waterfall")))
    assert "get_forecast" in shown
    assert "get_alerts" not in shown
    await page.keyboard.press("Enter")
    await expect(bar.get_by_role("status")).to_contain_text(f"1 of {count} texts")
    await page.keyboard.press("Shift+Enter")
    await expect(bar.get_by_role("status")).to_contain_text(f"{count} of {count} texts")
    await bar.get_by_role("button", name="Previous match").click()
    await expect(bar.get_by_role("status")).to_contain_text(f"{count - 1} of {count} texts")
    await until(page, f"{_MARKED}.includes('before noon')")
    await find_filter(page).fill("nothing like this")
    await expect(bar.get_by_role("status")).to_have_text("No text contains these words")
    await find_filter(page).fill("")
    await expect(bar).to_be_hidden()


@pytest.mark.service("axe")
async def test_matches_of_a_run_are_opened_one_after_the_other(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await check_matches(page, url, task_id)
        await page.goto(f"{url}#/r/{task_id}?q=kind:tool+noon")
        await find_filter(page).press("Enter")
        await expect(page.locator(".matchbar mark").first).to_be_visible()
        assert await find_barriers(page) == []
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_matches_of_a_file_are_opened_one_after_the_other(
    page: Page, weather: tuple[EventLog, str], tmp_path: Path
) -> None:
    log, task_id = weather
    path = tmp_path / "run.html"
    path.write_bytes(make_file(await log.get_record(task_id), await log.read(task_id), internal=True))
    await check_matches(page, path.as_uri(), task_id)


async def test_matches_in_folded_parts_of_texts_are_opened(page: Page) -> None:
    @tool
    async def fetch() -> dict[str, str]:
        """Return a page."""
        return {"page": f"{'x ' * 400}needle", "other": "y" * 900}

    log = MemoryEventLog()
    model = ScriptedModel(call("fetch"), f"{'z ' * 20_000}the needle")
    task_id = (await Agent(model, tools=[fetch], log=log).run("Fetch")).task_id
    inspector = find_inspector(page)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?q=Needle")
        for field in ("result.page", "content-complete, content"):
            while field not in await page.locator(".matchbar").inner_text():
                await find_filter(page).press("Enter")
            await until(page, f"{_MARKED}.includes('needle')")
            await expect(inspector.locator(".block").filter(has_text="needle").first).to_be_in_viewport()
        await page.keyboard.press("Shift+Enter")
        await expect(inspector.get_by_role("button", name="300 more characters")).to_have_count(1)


async def test_hidden_texts_are_only_found_by_readers_with_access(page: Page, tmp_path: Path) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call(f"peek_{MARK}", at="needle"), "It is open."), tools=[peek], log=log)
    task_id = (await agent.run("Is it open?")).task_id
    path = tmp_path / "run.html"
    path.write_bytes(make_file(await log.get_record(task_id), await log.read(task_id), internal=False))
    status = page.locator(".matchbar").get_by_role("status")
    await page.goto(f"{path.as_uri()}#/r/{task_id}?q=needle")
    await expect(status).to_have_text("No text contains these words")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?q=needle")
        await expect(status).to_have_text(re.compile(r"^\d texts$"))


async def test_texts_of_later_events_are_found_while_the_run_works(page: Page) -> None:
    reached, go_on, log = asyncio.Event(), asyncio.Event(), MemoryEventLog()
    async with Runtime({"guide": make_guide(reached, go_on)}, log=log) as runtime:
        run = await runtime.start("guide", "Look around")
        await asyncio.wait_for(reached.wait(), 30)
        async with serve_view(log) as url:
            await page.goto(f"{url}#/r/{run.task_id}?q=seen+Bergen")
            status = page.locator(".matchbar").get_by_role("status")
            await expect(status).to_have_text("No text contains these words")
            go_on.set()
            await expect(status).to_have_text(re.compile(r"^\d texts?$"))
            await page.keyboard.press("/")
            await page.keyboard.press("Enter")
            await expect(find_inspector(page)).to_contain_text("seen Bergen")
