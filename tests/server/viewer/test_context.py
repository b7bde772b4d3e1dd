"""Context of a run: sizes of requests, compressions, and the requests that contained a message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import (
    Agent,
    ContextCompressedEvent,
    Event,
    EventLog,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    RunContext,
    Signal,
    SlidingWindowCompressor,
    StatusUpdateEvent,
    TaskEvent,
    Usage,
    UsageEvent,
    op,
)
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.step_events import PartTokens, RequestRecord
from rxloop.recorded.diff import measure_cost
from rxloop.testing import ScriptedModel, turn
from support.acting_pages import serve_agents
from support.browser import expect, find_barriers
from support.long_runs import UNLIMITED, look, look_calls
from support.viewer_pages import find_inspector, find_rows, get_text, make_guide, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


def make_turn(call: Any, number: int) -> Callable[[ModelRequest], Any]:
    """Return a turn that reports slightly fewer input tokens than estimated, most of them from the cache."""

    def answer(request: ModelRequest) -> Any:
        count = (request.estimate or 0) - 3
        usage = Usage(input_tokens=count, cached_tokens=count // 2 if number % 4 else 0, output_tokens=20)
        return turn(calls=[call] if call else [], text="" if call else "Done.", usage=usage)

    return answer


async def record() -> tuple[EventLog, str, list[Event]]:
    """Record a run with three compressions."""
    turns = [make_turn(call, number) for number, call in enumerate([*look_calls(30), None])]
    model = ScriptedModel(*turns, name="anthropic:claude-opus-5")
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(2_700))])
    log = MemoryEventLog()
    agent = Agent(model, tools=[look], instructions="Be brief.", limits=UNLIMITED, loop=loop, log=log)
    task_id = (await agent.run("Find the crate.")).task_id
    events = list(await log.read(task_id))
    assert len([event for event in events if isinstance(event, ContextCompressedEvent)]) == 3
    return log, task_id, events


async def open_context(page: Page, url: str, task_id: str) -> Locator:
    await page.goto(f"{url}#/r/{task_id}/context")
    rows = find_rows(page, "Requests")
    await expect(rows.first).to_be_visible()
    return rows


def to_numbers(cells: list[str]) -> list[int]:
    return [int(re.sub(r"\D.*", "", cell.replace(",", "")) or 0) for cell in cells]


async def test_bars_are_the_reported_usage_and_cached_tokens_count_once(page: Page) -> None:
    log, task_id, events = await record()
    usages = [event for event in events if isinstance(event, UsageEvent)]
    total, cached = sum(each.input_tokens for each in usages), sum(each.cached_tokens for each in usages)
    async with serve_view(log) as url:
        rows = await open_context(page, url, task_id)
        for number in (0, 1, 2):
            cells = to_numbers(await rows.nth(number).get_by_role("gridcell").all_inner_texts())
            usage = usages[number]
            assert (cells[2], cells[3]) == (usage.input_tokens, usage.cached_tokens)
            assert sum(cells[4:]) == usage.input_tokens
        # All columns are in one line and inside of the table.
        boxes = [await cell.bounding_box() for cell in await rows.first.get_by_role("gridcell").all()]
        assert len({box["y"] + box["height"] / 2 for box in boxes if box}) == 1
        table = await page.locator(".requests .list").bounding_box()
        assert table is not None
        assert all(box and box["width"] and box["x"] + box["width"] <= table["x"] + table["width"] for box in boxes)
        totals = page.get_by_label("Totals", exact=True)
        chart = page.get_by_label("Chart of the requests")
        await expect(chart.get_by_text("step 1", exact=True)).to_be_visible()
        await expect(chart.get_by_role("img")).to_have_accessible_name(
            re.compile(f"^31 requests with {total} input tokens, {cached} of them from the cache")
        )
        await expect(page.get_by_text("input tokens per request")).to_be_visible()
        await expect(page.locator(".chartbox > .tick")).to_have_text(["0", "1,000", "2,000"])
        await expect(totals).to_contain_text(f"31 requests, {total:,} input tokens, {cached:,} of them from the cache")
        await expect(totals).to_contain_text(f"({round(100 * cached / total)} %)")
        # Opus 5: 5 dollars per million input tokens, 0.5 from the cache.
        await expect(totals).to_contain_text(f"The cache has saved ${cached * 4.5 / 1e6:.4f}")


async def test_compressions_show_the_folded_messages_and_their_summary(page: Page) -> None:
    log, task_id, events = await record()
    (first, *_) = [event for event in events if isinstance(event, ContextCompressedEvent)]
    async with serve_view(log) as url:
        await open_context(page, url, task_id)
        compressions = page.get_by_label("Compressions", exact=True)
        await expect(compressions.get_by_role("button")).to_have_count(3)
        button = compressions.get_by_role("button").first
        await expect(button).to_contain_text(f"{first.tokens_before:,} to {first.tokens_after:,} tokens")
        await button.focus()
        await page.keyboard.press("Enter")
        await expect(compressions).to_contain_text(f"overflow: {first.dropped} messages left out")
        await expect(compressions).to_contain_text("number CR-1000-X")
        await expect(compressions.locator(".folded")).to_have_count(len(first.folded))
        await expect(compressions.locator(".folded del").nth(1)).to_contain_text("At 0 stands a crate")


async def test_cells_show_in_which_requests_a_message_was_sent(page: Page) -> None:
    log, task_id, events = await record()
    calls = [event for event in events if isinstance(event, LLMCallEvent)]
    first = next(event for event in events if isinstance(event, ContextCompressedEvent))
    number = next(at for at, event in enumerate(calls, 1) if event.seq > first.seq)
    async with serve_view(log) as url:
        await open_context(page, url, task_id)
        await page.get_by_role("button", name="Messages in each request").click()
        rows = find_rows(page, "Messages in each request")
        await expect(rows.nth(0).get_by_role("img", name="requests: sent in 1 to 31")).to_be_visible()
        words = f"requests: sent in 2 to {number - 1}, left out of {number} to 31"
        await expect(rows.nth(2).get_by_role("img", name=words)).to_be_visible()
        await expect(rows.nth(2)).to_contain_text("At 0 stands a crate")


async def test_request_that_could_not_be_loaded_can_be_requested_again(page: Page) -> None:
    log, task_id, _ = await record()
    async with serve_view(log) as url:
        await open_context(page, url, task_id)
        await page.route("**/requests/*", lambda route: route.fulfill(status=503, json={"error": {"message": "busy"}}))
        await page.get_by_role("button", name="Messages in each request").click()
        messages = page.get_by_label("Messages", exact=True)
        await expect(messages).to_contain_text("The request could not be loaded: busy.")
        await page.unroute("**/requests/*")
        await messages.get_by_role("button", name="Again").click()
        await expect(find_rows(page, "Messages in each request").first).to_be_visible()


async def test_shortened_results_have_their_own_cells(page: Page) -> None:
    log, model = MemoryEventLog(), ScriptedModel(*look_calls(2), "Done.")

    @op.on(ModelRequest)
    async def shorten(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        *others, last = request.messages
        if request.iteration == 3:
            others[2] = others[2].model_copy(update={"content": "short"})
            yield request.replace(messages=[others[0], *others[1:], last])
        else:
            yield request

    loop = op.standard(before_model=[shorten])
    result = await Agent(model, tools=[look], loop=loop, log=log).run("Find the crate.")
    async with serve_view(log) as url:
        await open_context(page, url, result.task_id)
        await page.get_by_role("button", name="Messages in each request").click()
        cells = find_rows(page, "Messages in each request").nth(2).get_by_role("img")
        await expect(cells).to_have_attribute("aria-label", "requests: sent in 2, shortened in 3")


async def test_click_on_a_bar_and_enter_on_a_row_open_the_request(page: Page) -> None:
    log, task_id, events = await record()
    calls = [event for event in events if isinstance(event, LLMCallEvent)]
    async with serve_view(log) as url:
        rows = await open_context(page, url, task_id)
        await rows.first.focus()
        await page.keyboard.press("Enter")
        inspector = find_inspector(page)
        await expect(inspector).to_contain_text("Request of step 1", ignore_case=True)
        await page.get_by_label("Chart of the requests").locator("canvas").click(position={"x": 28 * 5 + 10, "y": 150})
        await expect(inspector).to_contain_text("Request of step 6", ignore_case=True)
        canvas = page.get_by_label("Chart of the requests").locator("canvas")
        await expect(canvas).to_have_attribute("title", re.compile(r"^step 6: [\d,]+ tokens$"))
        # The middle of the first bar is drawn from the bottom to its height.
        drawn = await canvas.evaluate(
            """canvas => {
                const scale = canvas.width / canvas.clientWidth, context = canvas.getContext('2d');
                const column = context.getImageData(13 * scale, 0, 1, canvas.height).data;
                return column.filter((alpha, k) => k % 4 === 3 && alpha === 255).length / canvas.height;
            }"""
        )
        inputs = [each.input_tokens for each in events if isinstance(each, UsageEvent)]
        assert abs(drawn - inputs[0] / (max(inputs) * 1.05)) < 0.05
        assert f"at=1.{calls[5].seq}.0" in page.url


async def test_requests_of_nested_agents_and_of_live_runs_are_listed(
    page: Page, conversation: tuple[EventLog, str]
) -> None:
    log, task_id = conversation
    async with serve_view(log) as url:
        rows = await open_context(page, url, task_id)
        await expect(rows).to_have_count(4)
        await page.get_by_role("combobox", name="Requests of").select_option(index=1)
        await expect(rows).to_have_count(1)
    reached, go_on = asyncio.Event(), asyncio.Event()
    async with serve_agents(make_guide(reached, go_on)) as served:
        name = next(iter(served.runtime.agents))
        run = await served.runtime.start(name, "Look around.")
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(served.find_run(run.task_id, "/context"))
        await expect(rows).to_have_count(2)
        go_on.set()
        await expect(rows).to_have_count(3)


@pytest.mark.service("axe")
@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_context_has_no_barriers(page: Page, scheme: Any) -> None:
    log, task_id, _ = await record()
    await page.emulate_media(color_scheme=scheme)
    async with serve_view(log) as url:
        await open_context(page, url, task_id)
        await page.get_by_role("button", name="Messages in each request").click()
        await page.get_by_label("Compressions", exact=True).get_by_role("button").first.click()
        await expect(page.locator(".folded").first).to_be_visible()
        assert await find_barriers(page) == []


def make_long_run(count: int) -> list[Event]:
    """Return the events of a run with many requests."""
    envelope: dict[str, Any] = {"task_id": "long", "context_id": "c", "attempt": 1}
    events: list[Event] = [TaskEvent(messages=[Message.user("Go.")], model="m", agent_name="a", **envelope)]
    events.append(StatusUpdateEvent(state="working", **envelope))
    for number in range(1, count + 1):
        tokens = 100 + 10 * (number % 300)
        ids: dict[str, Any] = {"step": str(number), **envelope}
        numbers: dict[str, Any] = {"message_count": number, "tool_count": 0, "estimated_input_tokens": tokens}
        parts = PartTokens(task=100, history=tokens - 100)
        events += [
            LLMCallEvent(iteration=number, model="m", parts=parts, request=RequestRecord(), **numbers, **ids),
            UsageEvent(input_tokens=tokens, cached_tokens=tokens // 2, **ids),
            ContentCompleteEvent(content=f"Part {number}.", finish_reason="pause", **ids),
        ]
    events.append(StatusUpdateEvent(state="completed", final=True, content="Done.", **envelope))
    return [event.model_copy(update={"seq": seq, "timestamp": seq}) for seq, event in enumerate(events, 1)]


async def test_two_thousand_requests_stay_fast(page: Page) -> None:
    log = MemoryEventLog()
    await log.append("long", make_long_run(2_000), expected_seq=0)
    async with serve_view(log) as url:
        rows = await open_context(page, url, "long")
        await expect(page.get_by_label("Totals", exact=True)).to_contain_text("2,000 requests")
        assert await rows.count() < 40
        await page.get_by_role("button", name="Messages in each request").click()
        await expect(find_rows(page, "Messages in each request").first).to_be_visible()
        assert await page.locator(".context *").count() < 2_000
        times: list[float] = await page.evaluate(
            """new Promise(done => {
                const chart = document.querySelector('.chart'), times = [];
                const step = at => {
                    times.push(at);
                    chart.scrollLeft += 25;
                    if (times.length < 30) requestAnimationFrame(step); else done(times);
                };
                requestAnimationFrame(step);
            })"""
        )
        gaps = sorted(after - before for before, after in pairwise(times))
        assert gaps[len(gaps) // 2] < 50


async def test_costs_of_the_requests_add_up_to_the_cost_of_the_run(page: Page) -> None:
    log, task_id, events = await record()
    dollars = measure_cost(events).dollars or 0
    async with serve_view(log) as url:
        rows = await open_context(page, url, task_id)
        costs = [(await get_text(rows.nth(number).get_by_role("gridcell")))[-1] for number in range(5)]
        assert all(re.fullmatch(r"\$0\.0\d{3}", cost) for cost in costs), costs
        figures = page.locator(".figures")
        await expect(figures).to_contain_text(f"${dollars:.4f} cost" if dollars < 0.1 else f"${dollars:.2f} cost")
        await expect(page.locator(".top .figure").last).to_have_text(re.compile(r"^\$0\.\d+cost$"))
        await page.get_by_role("button", name="First event").click()
        await expect(figures).to_contain_text("event 1 of")
        await expect(figures).not_to_contain_text("cost")
