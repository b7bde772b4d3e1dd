"""Tab of the inspector with the request as it was sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    EventLog,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    RunContext,
    Runtime,
    Signal,
    SlidingWindowCompressor,
    StatusUpdateEvent,
    TaskEvent,
    op,
    tool,
)
from rxloop.cli.service.adapters import create_adapters, create_application
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.browser import expect, find_barriers
from support.long_runs import UNLIMITED, look, look_calls
from support.viewer_pages import find_inspector, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


@op.on(ModelRequest)
async def mask_name(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Replace a name in all messages."""
    yield request.replace(
        messages=[
            each.model_copy(update={"content": each.text.replace("Ann", "[name]")}) if "Ann" in each.text else each
            for each in request.messages
        ]
    )


async def record(*operators: Any, count: int = 30, **options: Any) -> tuple[EventLog, str, list[LLMCallEvent]]:
    """Record a run with one tool call in each step."""
    log = MemoryEventLog()
    loop = op.standard(before_model=operators)
    model = ScriptedModel(*look_calls(count), "Done.")
    agent = Agent(model, tools=[look], instructions="Be brief.", limits=UNLIMITED, loop=loop, log=log, **options)
    result = await agent.run("Ann wants to find the crate.")
    calls = [event for event in await log.read(result.task_id) if isinstance(event, LLMCallEvent)]
    return log, result.task_id, calls


async def open_request(page: Page, url: str, task_id: str, seq: int) -> Locator:
    """Open the request of an event, and return its tab."""
    await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=request")
    inspector = find_inspector(page)
    await expect(inspector.get_by_label("Parts", exact=True)).to_be_visible()
    return inspector


def find_part(inspector: Locator, index: int) -> Locator:
    return inspector.locator(f"article[data-index='{index}']")


async def test_request_shows_the_mask_and_the_history_shows_the_name(page: Page) -> None:
    log, task_id, (first, *_) = await record(mask_name, count=2)
    async with serve_view(log) as url:
        inspector = await open_request(page, url, task_id, first.seq)
        task = find_part(inspector, 0)
        await expect(task.get_by_text("[name] wants to find the crate.")).to_be_visible()
        await expect(task.get_by_text("Ann wants to find the crate.")).to_be_visible()
        await expect(task).to_contain_text("edited by an operator")
        await expect(task).to_contain_text("In the history")
        await page.goto(f"{url}#/r/{task_id}/conversation")
        await expect(page.get_by_label("Conversation").get_by_text("Ann wants to find the crate.")).to_be_visible()


async def test_request_that_the_log_does_not_contain_yet_is_loaded_later(page: Page) -> None:
    log, task_id, calls = await record(count=2)
    error = {"code": "not_found", "message": "event 3 is not a model call of this run"}
    asked: list[str] = []

    async def answer(route: Route) -> None:
        # The stream of a live run is some milliseconds ahead of its log.
        asked.append(route.request.url)
        await (route.fulfill(status=404, json={"error": error}) if len(asked) < 3 else route.continue_())

    async with serve_view(log) as url:
        await page.route("**/requests/*", answer)
        inspector = await open_request(page, url, task_id, calls[0].seq)
        await expect(find_part(inspector, 0)).to_contain_text("Ann wants to find the crate.")
        assert asked == asked[:1] * 3


async def test_changes_are_marked_and_the_sum_of_the_parts_is_the_estimate(page: Page) -> None:
    settings = ModelSettings(temperature=0.5, tool_choice="auto")
    log, task_id, calls = await record(count=3, settings=settings)
    async with serve_view(log) as url:
        inspector = await open_request(page, url, task_id, calls[1].seq)
        await expect(find_part(inspector, 0)).to_contain_text("same")
        await expect(find_part(inspector, 1)).to_contain_text("new")
        await expect(find_part(inspector, 1)).to_contain_text("Calls look")
        texts = await inspector.locator("article .count").all_inner_texts()
        counts = [int(text.replace(",", "")) for text in texts]
        assert sum(counts) == calls[1].estimated_input_tokens
        await expect(inspector.get_by_label("Settings", exact=True)).to_contain_text("temperature")
        await inspector.get_by_label("Tools", exact=True).get_by_role("button", name=re.compile("look")).click()
        await expect(inspector.get_by_label("Tools", exact=True)).to_contain_text("integer")
        await expect(inspector.get_by_text("Rebuilt")).to_have_count(0)
        await inspector.get_by_role("button", name=re.compile("^content-complete")).click()
        await expect(inspector.get_by_role("heading", name="content-complete")).to_be_visible()
        # The answer belongs to the same request.
        await expect(inspector.get_by_label("Parts", exact=True)).to_be_visible()


async def test_left_out_messages_are_struck_with_their_reason(page: Page) -> None:
    log, task_id, calls = await record(op.compress(SlidingWindowCompressor(2_700)))
    async with serve_view(log) as url:
        inspector = await open_request(page, url, task_id, calls[-1].seq)
        group = inspector.get_by_role("button", name=re.compile(r"left out .* messages .* did not fit"))
        await group.focus()
        await page.keyboard.press("Enter")
        omitted = find_part(inspector, 2)
        await expect(omitted.locator("del")).to_contain_text("At 0 stands a crate")
        await expect(omitted).to_contain_text("did not fit")


async def test_request_of_an_old_log_is_marked_as_rebuilt(page: Page) -> None:
    log, task_id, calls = await record(count=2)
    old = MemoryEventLog()
    events = [
        event.model_copy(update={"request": None, "parts": None}) if isinstance(event, LLMCallEvent) else event
        for event in await log.read(task_id)
    ]
    await old.append(task_id, events, expected_seq=0)
    async with serve_view(old) as url:
        inspector = await open_request(page, url, task_id, calls[1].seq)
        await expect(inspector.get_by_text("Rebuilt", exact=True)).to_be_visible()
        await expect(find_part(inspector, 0)).to_contain_text("Ann wants to find the crate.")


async def test_readers_without_the_scope_see_that_parts_are_hidden(page: Page) -> None:
    agent = Agent(ScriptedModel("Found."), name="clerk", tools=[look], instructions="Secret prompt.")
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog())
    adapters = create_adapters(runtime, ["view"], {"secret-key-of-ann-1": "ann"})
    async with runtime, serve_app(create_application(adapters, (), "127.0.0.1", keys=True)) as url:
        run = await runtime.start("clerk", "Find it.", owner="ann")
        async for _ in runtime.follow(run.task_id):
            pass
        await page.goto(f"{url}/view/#/r/{run.task_id}?at=1.3.0&in=request")
        await page.get_by_label("Key", exact=True).fill("secret-key-of-ann-1")
        await page.get_by_role("button", name="Open").click()
        parts = find_inspector(page).get_by_label("Parts", exact=True)
        await expect(parts.locator("article").nth(0)).to_contain_text("hidden from clients")
        await expect(parts.locator("article").nth(1)).to_contain_text("Find it.")
        await expect(page.get_by_text("Secret prompt.")).to_have_count(0)


SLOW_FRAMES = "let time = 0; performance.now = () => time++; requestAnimationFrame = draw => setTimeout(draw, 200);"
"""With this clock, drawing takes a few milliseconds, and the page may only draw again after several frames."""


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("?at=1.3.0&in=request", "article[data-index='0'] .block bdi"),
        ("?at=1.1.0&in=event", ".inspector .block bdi"),
        ("?at=1.1.0&in=state", ".inspector [aria-label=Messages] bdi"),
        ("/conversation", ".conversation .said.user bdi"),
    ],
)
async def test_selected_text_survives_a_hundred_events(page: Page, address: str, text: str) -> None:
    reached, go_on, drawn, asked, released = (asyncio.Event() for _ in range(5))

    @tool
    async def tick(ctx: RunContext[Any]) -> str:
        """Publish a hundred events."""
        reached.set()
        await go_on.wait()
        for number in range(100):
            ctx.emit(CustomEvent(name="tick", data=number))
            await asyncio.sleep(0)
        await drawn.wait()
        return "done"

    async def hold(route: Route) -> None:
        asked.set()
        await released.wait()
        await route.continue_()

    agent = Agent(ScriptedModel(call("tick"), "Done."), name="clerk", tools=[tick])
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    async with runtime, serve_app(app) as url:
        run = await runtime.start("clerk", "A text to select.")
        await reached.wait()
        await page.add_init_script(SLOW_FRAMES)
        await page.goto(f"{url}/view/#/r/{run.task_id}{address}")
        selected = page.locator(text).first
        await expect(selected).to_have_text("A text to select.")
        await selected.evaluate("node => { window.kept = node; getSelection().selectAllChildren(node); }")
        # The page has matched the end of the call to its start by name, and reads the outline again at the end.
        await page.route("**/outline?*", hold)
        go_on.set()
        await expect(page.get_by_role("tab", name=re.compile(r"Events 1\d\d"))).to_be_visible()
        drawn.set()
        await expect(page.get_by_text("completed").first).to_be_visible()
        await asked.wait()
        async with page.expect_request(f"**/runs/{run.task_id}") as request:
            released.set()
        await (await request.value).response()
        await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert await page.evaluate("getSelection().toString()") == "A text to select."
        assert await page.evaluate("window.kept.isConnected")


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.service("axe")
async def test_request_has_no_barriers(page: Page, scheme: Any) -> None:
    log, task_id, calls = await record(op.compress(SlidingWindowCompressor(2_700)), mask_name)
    await page.emulate_media(color_scheme=scheme)
    async with serve_view(log) as url:
        inspector = await open_request(page, url, task_id, calls[-1].seq)
        await inspector.get_by_role("button", name=re.compile("left out .* messages")).click()
        assert await find_barriers(page) == []


async def test_request_fits_on_a_phone(page: Page) -> None:
    log, task_id, calls = await record(count=2)
    await page.set_viewport_size({"width": 390, "height": 844})
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}/context?at=1.{calls[1].seq}.0&in=request")
        await expect(page.get_by_label("Requests", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Inspector").click()
        await expect(find_inspector(page).get_by_label("Parts", exact=True)).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_json_has_line_breaks_windows_and_chips(page: Page) -> None:
    log = MemoryEventLog()
    data = {
        "text": "first line\nsecond line " + "word " * 400,
        "list": list(range(250)),
        "bytes": "aGVsbG8gd29ybGQ5Q0" * 300,
        "inner": '{"level": "yellow"}',
    }
    envelope: dict[str, Any] = {"task_id": "t", "context_id": "c", "attempt": 1, "timestamp": 1}
    ends: dict[str, Any] = {"state": "completed", "final": True, "content": "Done."}
    events: list[Event] = [
        TaskEvent(seq=1, messages=[Message.user("Hi.")], model="m", agent_name="a", **envelope),
        StatusUpdateEvent(seq=2, state="working", **envelope),
        CustomEvent(seq=3, name="page", data=data, **envelope),
        StatusUpdateEvent(seq=4, **ends, **envelope),
    ]
    await log.append("t", events, expected_seq=0)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/t?at=1.3.0&in=json")
        inspector = find_inspector(page)
        tree = inspector.locator(".json .block")
        await expect(tree.locator(".string").filter(has_text="first line")).to_contain_text("second line")
        white_space = "node => getComputedStyle(node).whiteSpace"
        assert await tree.locator(".string").filter(has_text="first line").evaluate(white_space) == "pre-wrap"
        await inspector.get_by_role("button", name="1,423 more characters").click()
        await expect(inspector.get_by_role("button", name="1,423 more characters")).to_have_count(0)
        await inspector.get_by_role("button", name="200 to 249").click()
        await expect(tree.get_by_text("249", exact=True).first).to_be_visible()
        await expect(tree.get_by_text("150", exact=True)).to_have_count(0)
        await expect(tree.locator(".chip")).to_contain_text("base64, 4.0 kB")
        await expect(tree.get_by_role("button", name="JSON in a string")).to_be_visible()
        async with page.expect_download() as download:
            await inspector.get_by_role("button", name="Download").click()
        assert (await download.value).suggested_filename == "t-3.json"
        await inspector.get_by_role("button", name="Raw").click()
        await expect(tree).to_contain_text('"seq": 3')


async def test_texts_of_an_event_are_highlighted_and_lines_can_be_kept(page: Page) -> None:
    log, task_id, _ = await record(count=2)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.1.0&in=json")
        inspector = find_inspector(page)
        find = inspector.get_by_role("textbox", name="Find in this event")
        await find.fill("ANN")
        await expect(inspector.get_by_role("status")).to_have_text(re.compile(r"^[1-9]\d* match"))
        assert await page.evaluate("CSS.highlights.get('found').size") > 0
        await find.press("Enter")
        await expect(inspector.get_by_role("status")).to_have_text(re.compile(r"^1 of [1-9]\d* match"))
        await find.fill("nothing like this")
        await expect(inspector.get_by_role("status")).to_have_text("0 matches")
        wrap = inspector.get_by_role("button", name="Wrap")
        await expect(wrap).to_have_attribute("aria-pressed", "true")
        await find.blur()
        await page.keyboard.press("W")
        await expect(wrap).to_have_attribute("aria-pressed", "false")
        await page.reload()
        await expect(wrap).to_have_attribute("aria-pressed", "false")
        await inspector.get_by_role("tab", name="Event").click()
        assert not await page.evaluate("CSS.highlights.has('found')")
