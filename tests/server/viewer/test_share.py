"""Exports of runs in a browser: the dialog, and files that are opened without a server."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import Agent, EventLog, LLMCallEvent, MemoryEventLog
from rxloop.cli.commands.transfer import read_runs
from rxloop.server.viewer.document import make_file
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect, find_barriers
from support.hidden_tools import MARK, fail, peek
from support.viewer_pages import find_filter, find_inspector, find_rows, get_text, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


async def write_file(log: EventLog, task_id: str, folder: Path, **options: Any) -> str:
    """Write the HTML file of a run and return its URL."""
    path = folder / "run.html"
    record, events = await log.get_record(task_id), await log.read(task_id)
    path.write_bytes(make_file(record, events, internal=options.get("internal", False)))
    return path.as_uri()


@contextlib.asynccontextmanager
async def serve_public(log: EventLog) -> AsyncGenerator[str]:
    """Serve a log to readers without access to internal data."""
    async with serve_agents(log=log) as served:
        yield f"{served.url}/view/"


async def test_file_shows_the_run_without_any_request(
    page: Page, weather: tuple[EventLog, str], tmp_path: Path
) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}")
        rows = find_rows(page, "Waterfall")
        await expect(rows.first).to_be_visible()
        served = await get_text(rows)
    address = await write_file(log, task_id, tmp_path, internal=True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.goto(address)
    await expect(page).to_have_url(re.compile(f"#/r/{task_id}"))
    await expect(rows).to_have_count(len(served))
    assert await get_text(rows) == served
    await expect(page.get_by_text("File, read only")).to_be_visible()
    await expect(page.get_by_role("button", name="Share")).to_be_hidden()
    await page.goto(f"{address}#/r/{task_id}?at=1.14.0")
    await expect(find_inspector(page).get_by_text("timed out after 2 s").first).to_be_visible()
    await page.get_by_role("tab", name=re.compile("Problems")).click()
    await expect(find_rows(page, "Problems").get_by_text("rate_limited: too many requests")).to_be_visible()
    await page.get_by_role("link", name="Runs", exact=True).click()
    await expect(find_rows(page, "Runs")).to_have_count(1)
    assert [each for each in requests if not each.startswith("file:")] == []
    assert {each.split("#")[0] for each in requests} == {address}


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "public"])
@pytest.mark.parametrize("run", ["weather", "conversation"])
async def test_file_shows_the_same_states_and_requests_as_the_server(
    page: Page,
    weather: tuple[EventLog, str],
    conversation: tuple[EventLog, str],
    tmp_path: Path,
    run: str,
    *,
    internal: bool,
) -> None:
    log, task_id = weather if run == "weather" else conversation
    events = await log.read(task_id)
    calls = [event.seq for event in events if isinstance(event, LLMCallEvent)][:4]
    inspector = find_inspector(page)

    async def read(url: str) -> list[list[str]]:
        shown: list[list[str]] = []
        for seq in [*range(1, len(events), 6), len(events)]:
            await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=state")
            await expect(inspector.locator(f".runstate[data-seq='{seq}'][aria-busy=false]")).to_be_visible()
            shown.append(await get_text(inspector))
        for seq in calls:
            await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=request")
            await expect(inspector.get_by_label("Parts", exact=True)).to_be_visible()
            shown.append(await get_text(inspector))
        await page.goto(f"{url}#/r/{task_id}/context")
        await expect(find_rows(page, "Requests").first).to_be_visible()
        shown.append(await get_text(find_rows(page, "Requests")))
        return shown

    served = serve_view(log) if internal else serve_public(log)
    async with served as url:
        expected = await read(url)
    assert await read(await write_file(log, task_id, tmp_path, internal=internal)) == expected


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "public"])
async def test_texts_of_a_file_can_be_searched(page: Page, tmp_path: Path, *, internal: bool) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call(f"peek_{MARK}", at="needle"), "It is open."), tools=[peek], log=log)
    task_id = (await agent.run("Is it open?")).task_id
    await page.goto(f"{await write_file(log, task_id, tmp_path, internal=internal)}#/")
    await find_filter(page).fill("IT IS OPEN")
    hits = find_rows(page, "Texts")
    await expect(hits.first).to_contain_text("It is open.")
    await find_filter(page).fill("needle")
    if not internal:
        await expect(page.get_by_text("No text contains these words")).to_be_visible()
        return
    await expect(hits.first).to_contain_text("needle")
    await hits.first.get_by_role("link").click()
    await page.wait_for_url(re.compile(r"#/r/.*at=1\.\d+\.0$"))


async def test_imported_public_form_is_marked(page: Page, conversation: tuple[EventLog, str]) -> None:
    log, task_id = conversation
    public = [event for event in await log.read(task_id) if event.to_public() is not None]
    [events] = read_runs(b"\n".join(event.to_json(public=True) for event in public), "file").values()
    imported = MemoryEventLog()
    await imported.append(task_id, events, expected_seq=0)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}")
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        await expect(page.get_by_text("Public form", exact=True)).to_have_count(0)
    async with serve_view(imported) as url:
        await page.goto(f"{url}#/r/{task_id}")
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        await expect(page.get_by_text("Public form", exact=True)).to_be_visible()


async def test_policy_of_a_file_forbids_requests(
    page: Page, problems: list[str], weather: tuple[EventLog, str], tmp_path: Path
) -> None:
    await page.goto(await write_file(*weather, tmp_path))
    await expect(find_rows(page, "Waterfall").first).to_be_visible()
    directive = await page.evaluate(
        "new Promise(done => { addEventListener('securitypolicyviolation', event => done(event.violatedDirective));"
        "fetch('https://example.com/').catch(() => 0); })"
    )
    assert directive == "connect-src"
    # The browser reports the violation on the console before the page is left.
    await page.goto("about:blank")
    assert any("connect-src" in each for each in problems), problems
    problems.clear()


@pytest.mark.service("axe")
async def test_dialog_downloads_the_chosen_file(page: Page, weather: tuple[EventLog, str], tmp_path: Path) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.9.0")
        await page.get_by_role("button", name="Share").click()
        dialog = page.get_by_role("dialog", name="Share")
        await expect(dialog.get_by_text(re.compile(r"[\d.]+ kB, run-.*\.html"))).to_be_visible()
        assert await find_barriers(page) == []
        await dialog.get_by_role("radio", name="JSON lines").check()
        await dialog.get_by_role("radio", name="Up to event 9").check()
        await expect(dialog.get_by_text(re.compile(r"run-.*\.jsonl"))).to_be_visible()
        async with page.expect_download() as waiting:
            await dialog.get_by_role("button", name="Download").click()
        download = await waiting.value
        path = tmp_path / "run.jsonl"
        await download.save_as(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        public = [event.seq for event in (await log.read(task_id))[:9] if event.to_public() is not None]
        assert len(public) < 9
        assert [json.loads(line)["seq"] for line in lines] == public
        assert download.suggested_filename.endswith(".jsonl")
        await dialog.get_by_role("radio", name=re.compile("^Internal")).check()
        await dialog.get_by_role("radio", name="All events").check()
        async with page.expect_download() as waiting:
            await dialog.get_by_role("button", name="Download").click()
        await (await waiting.value).save_as(path)
        assert len(path.read_text(encoding="utf-8").splitlines()) == 52
        for form, ending in (("Markdown", "md"), ("OpenTelemetry", "json"), ("Page", "html")):
            await dialog.get_by_role("radio", name=re.compile(f"^{form}")).check()
            await expect(dialog.get_by_text(re.compile(rf"run-.*\.{ending}$"))).to_be_visible()
        await dialog.get_by_role("radio", name="pytest").check()
        await expect(dialog.get_by_text("this run cannot be exported as a test")).to_be_visible()
        await expect(dialog.get_by_role("button", name="Download")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        # The key closes the dialog only.
        await expect(find_inspector(page)).to_be_visible()
        share = page.get_by_role("button", name="Share")
        await expect(share).to_be_focused()
        await share.click()
        await page.mouse.click(20, 500)
        await expect(dialog).to_be_hidden()
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.service("axe")
async def test_dialog_lists_the_data_that_readers_of_the_file_do_not_receive(page: Page) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel([call(f"peek_{MARK}"), call("fail")], "It is open."), tools=[peek, fail], log=log)
    task_id = (await agent.run("Is it open?")).task_id
    events = await log.read(task_id)
    hidden = [each for each in events if each.to_public() is None]
    last = hidden[0].seq
    dialog = page.get_by_role("dialog", name="Share")
    part = dialog.get_by_role("group", name="Hidden from readers")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{last}.0")
        await page.get_by_role("button", name="Share").click()
        await expect(part).to_contain_text(f"{len(hidden)} of {len(events)} events, with 1 call")
        lines = await get_text(part.get_by_role("listitem"))
        assert {f"1 tool-start peek_{MARK}", f"1 tool-complete peek_{MARK}"} <= {*lines}
        assert "1 content-complete without hidden calls and texts" in lines
        assert "system prompts, settings and hidden tools of 2 model requests" in lines
        assert await find_barriers(page) == []
        await dialog.get_by_role("radio", name=f"Up to event {last}").check()
        await expect(part).to_contain_text(f"1 of {last} events, with")
        await dialog.get_by_role("radio", name=re.compile("^Internal")).check()
        await expect(part).to_be_hidden()
    async with serve_public(log) as url:
        await page.goto(f"{url}#/r/{task_id}")
        await page.get_by_role("button", name="Share").click()
        await expect(part).to_contain_text(f"{len(hidden)} of {len(events)} events")
        assert f"{len(hidden)} hidden, also from you" in await get_text(part.get_by_role("listitem"))
        assert MARK not in await dialog.inner_text()
