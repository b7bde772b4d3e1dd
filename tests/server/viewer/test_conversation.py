"""Conversations in the viewer."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import (
    Agent,
    ContentDeltaEvent,
    Event,
    EventLog,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    Runtime,
    StatusUpdateEvent,
    TaskEvent,
    tool,
)
from rxloop.cli.service.adapters import create_adapters, create_application
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.api_server import serve_app
from support.browser import expect, find_barriers
from support.viewer_pages import find_inspector, get_text, make_guide, open_page_anew, serve_view
from support.viewer_runs import store_long_run
from support.viewer_talk import PIXEL

if TYPE_CHECKING:
    from playwright.async_api import Download, Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


@tool
async def measure(city: str) -> str:
    """Measure the temperature."""
    return f"7 °C in {city}"


async def test_conversation_contains_the_messages_up_to_the_playhead(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    parts = page.locator(".column > .said, .column > .call")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}/conversation")
        await expect(page.locator(".column > .said")).to_have_count(4)
        shown = await get_text(parts)
        assert shown[0] == "Oslo or Bergen for a hike on Saturday?"
        assert shown[3] == "get_forecast city=Oslo 11 °C, dry until 15:00 0.76 s"
        assert shown[-1].startswith("Oslo is the better choice")
        assert len(shown) == 12
        await page.locator(".call").filter(has_text="11 °C").click()
        await expect(find_inspector(page).get_by_role("heading", name="tool-complete")).to_be_visible()
        await page.locator(".said.user").click()
        await expect(find_inspector(page).get_by_role("heading", name="task")).to_be_visible()
        await open_page_anew(page, f"{url}#/r/{task_id}/conversation?at=1.12.0")
        await expect(page.locator(".column > .said")).to_have_count(2)
        assert (await get_text(parts))[3:] == [
            "get_forecast city=Oslo 11 °C, dry until 15:00 0.76 s",
            "get_forecast city=Bergen running",
            "get_alerts region=Vestland running",
        ]
        await page.locator(".column > .said.model").press("Enter")
        await expect(find_inspector(page)).to_contain_text("content-complete")


async def test_conversation_is_updated_while_the_run_works(page: Page) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    runtime = Runtime({"guide": make_guide(reached, go_on)}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    calls = page.get_by_label("Conversation").get_by_role("button")
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Look around.")
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(f"{url}/view/#/r/{run.task_id}/conversation")
        await expect(calls.filter(has_text=re.compile(r"look\s*place=Bergen\s*running"))).to_be_visible()
        go_on.set()
        await expect(calls.filter(has_text=re.compile(r"look\s*place=Bergen\s*seen Bergen"))).to_be_visible()
        await expect(calls.filter(has_text="running")).to_have_count(0)
        await expect(page.locator(".said.model").last).to_have_text("It is done.")
        await expect(page.locator(".call.selected")).to_have_count(0)


async def test_events_that_the_log_does_not_contain_yet_are_loaded_later(
    page: Page, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    asked: list[str] = []

    async def answer(route: Route) -> None:
        # The stream of a live run is some milliseconds ahead of its log.
        asked.append(route.request.url)
        await (route.fulfill(status=200, body="") if len(asked) < 3 else route.continue_())

    async with serve_view(log) as url:
        await page.route("**/events?from=*", answer)
        await page.goto(f"{url}#/r/{task_id}?at=1.1.0")
        await expect(find_inspector(page)).to_contain_text("Oslo or Bergen for a hike on Saturday?")
        await expect(find_inspector(page).get_by_text("hidden")).to_have_count(0)
        assert asked[:3] == asked[:1] * 3


async def test_text_is_shown_while_it_is_written_and_struck_through_if_it_is_discarded(page: Page) -> None:
    log = MemoryEventLog()
    envelope: dict[str, Any] = {"task_id": "t", "context_id": "c", "timestamp": 1}
    request: dict[str, Any] = {"iteration": 1, "model": "m", "message_count": 1, "tool_count": 0, "step": "1"}
    request |= {"estimated_input_tokens": 9, **envelope}
    working: dict[str, Any] = {"state": "working", **envelope}
    task = TaskEvent(seq=1, attempt=1, messages=[Message.user("Where?")], model="m", agent_name="guide", **envelope)
    begin = [task, StatusUpdateEvent(seq=2, attempt=1, **working), LLMCallEvent(seq=3, attempt=1, **request)]
    await log.append("t", begin, expected_seq=0)
    # Another process resumes the run while the model writes.
    text = ContentDeltaEvent(seq=3, sub=1, attempt=1, delta="It rains in", step="1", **envelope)
    again = [StatusUpdateEvent(seq=4, attempt=2, resumed=True, **working), LLMCallEvent(seq=5, attempt=2, **request)]
    parts: list[list[Event]] = [[text], [*again]]
    may_continue = asyncio.Event()

    async def stream(route: Route) -> None:
        if len(parts) == 1:
            await may_continue.wait()
        if parts:
            await route.fulfill(body=b"".join(event.to_json() + b"\n" for event in parts.pop(0)))

    async with serve_view(log) as url:
        await page.route("**/events?after=*", stream)
        await page.goto(f"{url}#/r/t/conversation")
        messages = page.locator(".said.model")
        await expect(messages).to_have_text("It rains in")
        may_continue.set()
        discarded = page.get_by_role("note", name="discarded try")
        await expect(discarded.locator("del")).to_have_text("It rains in")
        await expect(discarded).to_contain_text("first try, started after 0 s, not completed")
        await expect(messages).to_have_text("waits for m")


async def test_long_conversations_begin_with_their_newest_entries(page: Page) -> None:
    log = MemoryEventLog()
    await store_long_run(log, steps=150)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/long/conversation")
        calls = page.locator(".call").filter(has_text="query")
        await expect(calls).to_have_count(100)
        await expect(calls.last).to_contain_text("query 150")
        await page.get_by_role("button", name="Show 101 earlier").click()
        await expect(calls).to_have_count(150)


async def test_each_part_of_a_conversation_has_a_role_and_a_name(
    page: Page, conversation: tuple[EventLog, str], tmp_path: Path
) -> None:
    log, task_id = conversation
    talk = page.get_by_role("log", name="Conversation")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}/conversation")
        question = talk.get_by_role("article", name="user message").first
        await expect(question).to_contain_text("What is on the receipt?")
        await expect(question.get_by_role("img", name="image")).to_have_js_property("naturalWidth", 1)
        address = question.get_by_role("group", name="address image")
        await expect(address).to_contain_text("not loaded: https://example.org/receipt.png")
        await expect(question.get_by_role("group", name="file drawing.svg")).to_contain_text("image/svg+xml, 66 bytes")
        tries = talk.get_by_role("note", name="discarded try")
        await expect(tries.nth(0)).to_have_text("first try, started after 0 s, not completed, text not kept")
        await expect(tries.nth(1)).to_have_text("try 2 failed after 0.20 s: rate_limited: too many requests")
        answers = talk.get_by_role("article", name="message of the model")
        await expect(answers.nth(0)).to_contain_text("It is a receipt over 5 pounds.")
        await expect(answers.nth(0)).not_to_contain_text("The picture shows a receipt.", use_inner_text=True)
        await talk.get_by_text("thought for 1.20 s, 41 tokens").click()
        await expect(answers.nth(0)).to_contain_text("The picture shows a receipt.", use_inner_text=True)
        asked = talk.get_by_role("article", name="question", exact=True)
        await expect(asked).to_have_text("question about refundRefund A17?")
        await expect(talk.get_by_role("article", name="answer to the question")).to_have_text("answerapproved")
        await expect(talk.get_by_role("button", name=re.compile(r"refund.*refunded A17"))).to_be_visible()
        await expect(talk.get_by_role("img")).to_have_count(2)
        nested = talk.get_by_role("blockquote", name="nested agent rules")
        await expect(nested.get_by_role("article", name="user message")).to_have_text("How long?")
        await expect(nested.get_by_role("article", name="message of rules")).to_have_text("Refunds take two days.")
        await nested.get_by_role("button", name="rules 2 entries 0 s").press("Enter")
        await expect(nested.get_by_role("article")).to_have_count(0)
        steering = talk.get_by_role("article", name="message to the running agent")
        await expect(steering).to_contain_text("Shorter, please.")
        await expect(answers.nth(1)).to_contain_text("Your refund will take")
        await expect(answers.nth(1).get_by_role("note")).to_have_text("interrupted by a new message")
        await expect(answers.nth(2)).to_contain_text("Two days 🗓[1], as the rules say.")
        await expect(answers.nth(2).get_by_role("note")).to_have_text("cut off at its length limit")
        sources = answers.nth(2).get_by_role("list", name="Citations").get_by_role("listitem")
        await expect(sources).to_have_text(["Rules javascript:alert(1)two days"])
        await expect(talk.get_by_role("link")).to_have_count(0)
        async with page.expect_download() as saving:
            await talk.get_by_role("button", name="Download refund.pdf").click()
        saved = await saving.value
        assert re.fullmatch(r"event-\d+[.]pdf", saved.suggested_filename)
        assert await _read(saved, tmp_path) == b"%PDF-1.4"
        async with page.expect_download() as saving:
            await question.get_by_role("button", name="Download image").click()
        assert await _read(await saving.value, tmp_path) == PIXEL


async def _read(saved: Download, folder: Path) -> bytes:
    await saved.save_as(folder / "saved")
    return (folder / "saved").read_bytes()


async def test_conversation_follows_new_messages_only_at_its_end(page: Page) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    runtime = Runtime({"guide": make_guide(reached, go_on)}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    talk = page.get_by_role("log", name="Conversation")
    await page.set_viewport_size({"width": 1200, "height": 500})
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Look around. " * 400)
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(f"{url}/view/#/r/{run.task_id}/conversation")
        await expect(talk).to_contain_text("Look around. Look around.")
        await expect(talk.get_by_text("running")).to_be_in_viewport()
        await talk.evaluate("element => { element.scrollTop = 100; }")
        await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await runtime.send(run.task_id, "And then?")
        go_on.set()
        await expect(talk.get_by_text("It is done.")).to_be_attached()
        assert await talk.evaluate("element => element.scrollTop") == 100


@pytest.mark.service("axe")
async def test_conversation_can_be_shown_as_the_model_saw_it(page: Page) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("measure", city="Oslo"), call("measure", city="Bergen"), "Oslo.")
    agent = Agent(model, tools=[measure], instructions="You compare the weather.", log=log)
    task_id = (await agent.run("Oslo or Bergen?")).task_id
    second = [event.seq for event in await log.read(task_id) if event.kind == "llm-call"][1]
    talk = page.get_by_role("log", name="Conversation")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}/conversation")
        await expect(talk.get_by_text("Oslo.", exact=True)).to_be_visible()
        await expect(talk.get_by_role("article", name="system message")).to_have_count(0)
        await page.get_by_role("button", name="Model").click()
        await expect(talk.get_by_role("article", name="system message").first).to_contain_text(
            "You compare the weather"
        )
        await expect(talk.get_by_role("article", name="tool message").first).to_contain_text("7 °C in Oslo")
        await expect(talk.get_by_role("article", name="assistant message").last).to_contain_text("answer")
        assert await find_barriers(page) == []
        # Messages after the selected event are not shown.
        await open_page_anew(page, re.sub(r"conversation\?", f"conversation?at=1.{second}.0&", page.url))
        await expect(talk.get_by_role("article", name="assistant message")).to_have_count(1)
        await expect(talk.get_by_role("article", name="tool message")).to_have_count(1)
        await page.get_by_role("button", name="Person").click()
        await expect(page).not_to_have_url(re.compile("as=model"))
        await expect(talk.get_by_role("article", name="system message")).to_have_count(0)


async def test_conversation_of_the_model_requires_internal_data(page: Page, conversation: tuple[EventLog, str]) -> None:
    log, task_id = conversation
    async with serve_agents(log=log) as served:
        await page.goto(served.find_run(task_id, "/conversation?as=model"))
        await expect(page.get_by_role("article", name="user message").first).to_be_visible()
        await expect(page.get_by_role("button", name="Model")).to_have_count(0)
