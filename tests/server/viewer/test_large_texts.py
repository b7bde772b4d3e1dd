"""Very large texts, lists and pictures: the page loads their beginning, and the rest on request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, Message, tool
from rxloop.protocol.messages import ImagePart, TextPart
from rxloop.server.viewer.document import make_file
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect, find_barriers
from support.viewer_pages import find_inspector, open_page_anew, serve_view
from support.viewer_talk import PIXEL

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

LARGE = f"<b>{'W' * 1_000_000}THE END"
NOT_LOADED = re.compile(r"^[\d,]+ more characters were not loaded")


@tool
async def fetch() -> dict[str, str]:
    """Return a large page."""
    return {"page": LARGE}


@tool
async def list_rows() -> dict[str, list[int]]:
    """Return a long list."""
    return {"rows": list(range(30_000))}


def count_bytes(page: Page, path: str) -> list[int]:
    """Return a list to which the sizes of the responses of a route are added."""
    sizes: list[int] = []

    async def note(response: Any) -> None:
        if path in response.url:
            sizes.append(len(await response.body()))

    page.on("response", note)
    return sizes


async def record(log: EventLog) -> tuple[str, int]:
    """Record a run with a large result, and return its id and the `seq` of the result."""
    task_id = (await Agent(ScriptedModel(call("fetch"), "Done."), tools=[fetch], log=log).run("Fetch")).task_id
    return task_id, next(each.seq for each in await log.read(task_id) if each.kind == "tool-complete")


async def check_texts(page: Page, address: str) -> None:
    """Load and show all of the large result, first its beginning."""
    sizes = count_bytes(page, "/events?")
    await page.goto(address)
    inspector = find_inspector(page)
    note_text = inspector.get_by_text(NOT_LOADED)
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


async def check_message(inspector: Locator, place: Locator, sizes: list[int]) -> None:
    """Load and show the rest of a message."""
    await expect(place.get_by_text(NOT_LOADED)).to_be_visible()
    assert all(size < 300_000 for size in sizes)
    await place.get_by_role("button", name="Load them").click()
    await place.get_by_role("button", name=re.compile("^Show all 100,")).click()
    await expect(place).to_contain_text('THE END"')
    await expect(inspector.get_by_text(NOT_LOADED)).to_have_count(0)
    assert len(sizes) > 1


@pytest.mark.service("axe")
async def test_large_messages_of_a_state_are_loaded_on_request(page: Page) -> None:
    log = MemoryEventLog()
    task_id, seq = await record(log)
    sizes = count_bytes(page, "/state?")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{seq + 1}.0&in=state")
        inspector = find_inspector(page)
        messages = inspector.get_by_role("region", name="Messages").get_by_role("listitem")
        await expect(messages).to_have_count(3)
        await expect(messages.last.get_by_text(NOT_LOADED)).to_be_visible()
        assert await find_barriers(page) == []
        await check_message(inspector, messages.last, sizes)
        # The state before the event has the same message, which is not loaded again.
        count = len(sizes)
        await page.keyboard.press("j")
        await expect(page.locator(f".runstate[data-seq='{seq + 2}'][aria-busy=false]")).to_be_attached()
        await expect(messages.nth(2).get_by_text(NOT_LOADED)).to_have_count(0)
        assert all(size < 10_000 for size in sizes[count:])


async def test_large_arguments_of_an_open_call_are_loaded_on_request(page: Page) -> None:
    log = MemoryEventLog()

    @tool
    async def save(page: str, rows: list[int]) -> str:
        """Save a page."""
        return "saved"

    agent = Agent(ScriptedModel(call("save", page=LARGE, rows=list(range(50_000))), "Done."), tools=[save], log=log)
    task_id = (await agent.run("Save")).task_id
    seq = next(each.seq for each in await log.read(task_id) if each.kind == "tool-start")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=state")
        calls = find_inspector(page).get_by_role("region", name="Open calls").get_by_role("listitem")
        note = calls.get_by_text(re.compile(r"^[\d,]+ more characters and [\d,]+ more values were not loaded"))
        await expect(note).to_be_visible()
        await note.get_by_role("button", name="Load them").click()
        await expect(note).to_have_count(0)
        await calls.get_by_role("button", name="49,900 to 49,999").click()
        await expect(calls.get_by_text("49999", exact=True).first).to_be_visible()


async def test_large_messages_of_a_request_are_loaded_on_request(page: Page) -> None:
    log = MemoryEventLog()
    task_id, seq = await record(log)
    sizes = count_bytes(page, "/requests/")
    call_seq = next(each.seq for each in await log.read(task_id) if each.kind == "llm-call" and each.seq > seq)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{call_seq}.0&in=request")
        inspector = find_inspector(page)
        await check_message(inspector, inspector.locator("article[data-index='2']"), sizes)


async def test_large_messages_of_a_file_are_loaded_on_request(page: Page, tmp_path: Path) -> None:
    log = MemoryEventLog()
    task_id, seq = await record(log)
    path = tmp_path / "run.html"
    path.write_bytes(make_file(await log.get_record(task_id), await log.read(task_id), internal=True))
    call_seq = next(each.seq for each in await log.read(task_id) if each.kind == "llm-call" and each.seq > seq)
    inspector = find_inspector(page)
    for tab, place in (("request", "article[data-index='2']"), ("state", "[aria-label=Messages] li:last-child")):
        await page.goto(f"{path.as_uri()}#/r/{task_id}?at=1.{call_seq}.0&in={tab}")
        await check_message(inspector, inspector.locator(place), [0, 0])


async def test_long_lists_are_loaded_on_request(page: Page) -> None:
    log = MemoryEventLog()
    task_id = (await Agent(ScriptedModel(call("list_rows"), "Done."), tools=[list_rows], log=log).run("List")).task_id
    seq = next(each.seq for each in await log.read(task_id) if each.kind == "tool-complete")
    sizes = count_bytes(page, "/events?")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=json")
        inspector = find_inspector(page)
        rest = inspector.get_by_role("button", name=re.compile(r"^[\d,]+ more were not loaded"))
        await expect(rest).to_be_visible()
        await expect(
            inspector.get_by_text(re.compile("more characters and [\\d,]+ more values were not"))
        ).to_be_visible()
        assert all(size < 300_000 for size in sizes)
        await rest.click()
        await inspector.get_by_role("button", name="29,900 to 29,999").click()
        await expect(inspector.get_by_text("29999", exact=True).first).to_be_visible()
        await expect(rest).to_have_count(0)


@pytest.mark.service("axe")
async def test_large_pictures_are_loaded_when_they_are_visible_or_on_request(page: Page) -> None:
    log = MemoryEventLog()
    # Browsers ignore bytes after the end of a picture.
    sizes = (200_000, 4_000_000)
    parts = [ImagePart(data=PIXEL + bytes(size), media_type="image/png") for size in sizes]
    agent = Agent(ScriptedModel("A dot.", "Another dot."), log=log)
    first = await agent.run([Message.user([TextPart(text="What is this?"), parts[0]])])
    second = await agent.run([Message.user([TextPart(text="And this?"), parts[1]])])
    requests = count_bytes(page, "/events?")
    talk = page.get_by_role("log", name="Conversation")
    is_drawn = "node => node.decode().then(() => node.naturalWidth > 0)"
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{first.task_id}/conversation")
        assert await talk.get_by_role("img").evaluate(is_drawn)
        assert requests[0] < 100_000 < requests[1]
        requests.clear()
        await open_page_anew(page, f"{url}#/r/{second.task_id}/conversation")
        card = talk.get_by_role("group", name="picture image")
        await expect(card).to_contain_text("image/png, 4.0 MB, not loaded")
        assert await find_barriers(page) == []
        assert all(size < 100_000 for size in requests)
        await card.get_by_role("button", name="Load").click()
        assert await talk.get_by_role("img").evaluate(is_drawn)
