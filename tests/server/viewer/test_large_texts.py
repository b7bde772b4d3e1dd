"""Events with very large texts: the page loads their beginning, and the rest on request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, tool
from rxloop.server.viewer.document import make_file
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect, find_barriers
from support.viewer_pages import find_inspector, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

LARGE = f"<b>{'W' * 1_000_000}THE END"


@tool
async def fetch() -> dict[str, str]:
    """Return a large page."""
    return {"page": LARGE}


async def record(log: EventLog) -> tuple[str, int]:
    """Record a run with a large result, and return its id and the `seq` of the result."""
    task_id = (await Agent(ScriptedModel(call("fetch"), "Done."), tools=[fetch], log=log).run("Fetch")).task_id
    return task_id, next(each.seq for each in await log.read(task_id) if each.kind == "tool-complete")


async def check_texts(page: Page, address: str) -> None:
    """Load and show all of the large result, first its beginning."""
    sizes: list[int] = []

    async def note(response: Any) -> None:
        if "/events?" in response.url:
            sizes.append(len(await response.body()))

    page.on("response", note)
    await page.goto(address)
    inspector = find_inspector(page)
    note_text = inspector.get_by_text(re.compile(r"^[\d,]+ more characters were not loaded"))
    await expect(note_text).to_be_visible()
    result = inspector.locator("section", has_text=re.compile("^Result"))
    await expect(result).to_contain_text('page: "<b>WWW')
    assert all(size < 300_000 for size in sizes)
    await inspector.get_by_role("button", name="Load them").click()
    await expect(note_text).to_have_count(0)
    # Only the beginning of the text is in the document.
    assert len(await inspector.inner_text()) < 60_000
    await result.get_by_role("button", name=re.compile("more characters")).click()
    await expect(result).to_contain_text('THE END"')


@pytest.mark.service("axe")
async def test_large_texts_of_an_event_are_loaded_on_request(page: Page) -> None:
    log = MemoryEventLog()
    task_id, seq = await record(log)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0")
        await expect(find_inspector(page).get_by_role("button", name="Load them")).to_be_visible()
        assert await find_barriers(page) == []
        await check_texts(page, f"{url}#/r/{task_id}?at=1.{seq}.0")


async def test_large_texts_of_a_file_are_shown_on_request(page: Page, tmp_path: Path) -> None:
    log = MemoryEventLog()
    task_id, seq = await record(log)
    path = tmp_path / "run.html"
    path.write_bytes(make_file(await log.get_record(task_id), await log.read(task_id), internal=True))
    await check_texts(page, f"{path.as_uri()}#/r/{task_id}?at=1.{seq}.0")


async def test_form_of_a_fork_contains_the_whole_result(page: Page) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("fetch"), "Done."), tools=[fetch])
    task_id, seq = await record(log)
    async with serve_agents(agent, log=log) as served:
        await page.goto(f"{served.url}/view/#/r/{task_id}?at=1.{seq}.0")
        await find_inspector(page).get_by_role("button", name="Fork here").click()
        result = page.get_by_label(re.compile("^Result of fetch"))
        assert (await result.input_value()).endswith('THE END"\n}')
