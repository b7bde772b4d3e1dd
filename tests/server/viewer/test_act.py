"""Answers, messages and cancellations sent from the viewer page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rxloop import (
    Agent,
    MemoryEventLog,
    MessageAddedEvent,
    RunContext,
    Runtime,
    SqliteEventLog,
    ToolCompleteEvent,
    client_tool,
    tool,
)
from rxloop.errors import BadRequest, RateLimited
from rxloop.server import bearer
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect, find_barriers, open_page
from support.viewer_pages import open_page_anew, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


class Guest(BaseModel):
    name: str
    age: int | None = Field(default=None, ge=0, le=120)


class Booking(BaseModel):
    room: Literal["single", "double"]
    nights: int = Field(ge=1, description="At least one.")
    vegan: bool
    guests: list[Guest]


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def book(ctx: RunContext[Any]) -> str:
    """Book a room."""
    booking = await ctx.ask("Which room?", Booking)
    return booking.model_dump_json()


@tool
async def choose(ctx: RunContext[Any]) -> str:
    """Let the user choose."""
    return await ctx.ask("Which city?", str, options=["Oslo", "Bergen"])


@tool
async def sign_in(ctx: RunContext[Any]) -> str:
    """Sign in."""
    return await ctx.require_auth("bank", url="https://bank.example/login?x=1")


def make_clerk(*turns: Any, tools: Any = (refund, book, choose, sign_in)) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", tools=list(tools), thoughts=False)


def find_question(page: Page) -> Locator:
    return page.get_by_role("region", name="Question")


def find_button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


async def read_results(served: Any, task_id: str) -> list[Any]:
    return [each.result for each in await served.runtime.log.read(task_id) if each.kind == "tool-complete"]


async def test_approval_is_shown_on_each_tab_and_resumes_the_run(page: Page) -> None:
    async with serve_agents(make_clerk(call("refund", order="A1"), "Done.")) as served:
        task_id = await served.ask("Refund A1")
        for tab in ("", "/conversation", "/events", "/problems"):
            await open_page_anew(page, served.find_run(task_id, tab))
            await expect(find_question(page)).to_contain_text("Refund A1?")
        await expect(page).to_have_title(re.compile(r"^\(1\) Refund A1"))
        assert await page.evaluate("document.activeElement === document.body")
        await find_button(page, "Approve and run refund").click()
        await expect(find_question(page)).to_have_count(0)
        await expect(page).to_have_title("Refund A1 · rxloop")
        assert await served.wait(task_id) == "completed"
        assert await read_results(served, task_id) == ["refunded A1"]
        # A finished run cannot be changed.
        await expect(page.locator(".path .state.completed")).to_be_visible()
        await expect(page.get_by_role("region", name="Act on the run")).to_have_count(0)


async def test_refused_call_is_not_executed(page: Page) -> None:
    async with serve_agents(make_clerk(call("refund", order="A1"), "Not refunded.")) as served:
        task_id = await served.ask("Refund A1")
        await page.goto(served.find_run(task_id))
        await find_button(page, "Refuse").press("Enter")
        await expect(page.locator(".path .state.completed")).to_be_visible()
        assert await read_results(served, task_id) != ["refunded A1"]


async def test_answer_is_marked_as_sent_until_the_run_has_applied_it(page: Page) -> None:
    gate = asyncio.Event()

    async def hold(route: Route) -> None:
        await gate.wait()
        await route.continue_()

    async with serve_agents(make_clerk(call("choose"), "Done.")) as served:
        task_id = await served.ask("Choose")
        await page.goto(served.find_run(task_id))
        await page.route("**/resume", hold)
        await find_button(page, "Bergen").click()
        await expect(find_question(page).get_by_role("status")).to_have_text("Sent, waiting for the run.")
        await expect(page).to_have_title("Choose · rxloop")
        gate.set()
        await expect(find_question(page)).to_have_count(0)
        assert await served.wait(task_id) == "completed"
        assert await read_results(served, task_id) == ["Bergen"]


async def test_invalid_value_is_reported_at_its_field(page: Page) -> None:
    async with serve_agents(make_clerk(call("book"), "Booked.")) as served:
        task_id = await served.ask("Book a room")
        await page.goto(served.find_run(task_id))
        form = find_question(page)
        await form.get_by_label("room").select_option("double")
        await form.get_by_label("nights").fill("two")
        await form.get_by_label("vegan").select_option("no")
        await form.get_by_role("button", name="Add to guests").click()
        await form.get_by_role("button", name="Add to guests").click()
        await form.get_by_role("button", name="Remove guests 1").click()
        await form.get_by_label("name").fill("Ann")
        await form.get_by_label("age").fill("200")
        await find_button(page, "Send the answer").click()
        await expect(form.get_by_label("nights")).to_have_accessible_description("✕ must be a number")
        await form.get_by_label("nights").fill("2")
        async with page.expect_response("**/resume") as refused:
            await find_button(page, "Send the answer").click()
        assert (await refused.value).status == 422
        age = form.get_by_label("age")
        await expect(age).to_have_attribute("aria-invalid", "true")
        await expect(age).to_have_accessible_description(re.compile(r"guests\[0\]\.age must be .*got 200"))
        await expect(form.get_by_label("nights")).to_have_attribute("aria-invalid", "false")
        await age.fill("42")
        await find_button(page, "Send the answer").click()
        await expect(find_question(page)).to_have_count(0)
        assert await served.wait(task_id) == "completed"
        [result] = await read_results(served, task_id)
        assert result == '{"room":"double","nights":2,"vegan":false,"guests":[{"name":"Ann","age":42}]}'


async def test_second_of_two_answers_is_refused_in_words(page: Page, chromium: Browser) -> None:
    both = asyncio.Event()
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)
        if len(held) == 2:
            both.set()
        await both.wait()
        await route.continue_()

    async with (
        serve_agents(make_clerk(call("refund", order="A1"), "Done.")) as served,
        open_page(chromium) as other,
    ):
        task_id = await served.ask("Refund A1")
        for each in (page, other):
            await each.goto(served.find_run(task_id))
            await each.route("**/resume", hold)
            await expect(find_question(each)).to_be_visible()
        await find_button(page, "Approve and run refund").click()
        await find_button(other, "Refuse").click()
        for each in (page, other):
            await expect(each.locator(".path .state.completed")).to_be_visible()
            await expect(find_question(each)).to_have_count(0)
        texts = [await each.locator(".question.notice").all_inner_texts() for each in (page, other)]
        [text] = [text for each in texts for text in each]
        assert "Somebody else answered this question" in text
        assert "Refund A1?" in text
        for each in (page, other):
            for button in await each.locator(".question.notice").get_by_role("button", name="Close").all():
                await button.click()
            await expect(each.locator(".question.notice")).to_have_count(0)


async def test_message_reaches_the_run(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on, sent = asyncio.Event(), asyncio.Event(), list[Callable[[], Awaitable[None]]]()

    @tool
    async def look() -> str:
        """Look around."""
        reached.set()
        await go_on.wait()
        return "seen"

    async with serve_agents(make_clerk(call("look"), "Done.", tools=[look])) as served:
        run = await served.runtime.start("clerk", "Look")
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(served.find_run(run.task_id))
        await page.get_by_label("Message to the run").fill("Also look at Bergen")
        await page.get_by_label("interrupt").check()
        send = served.runtime.send

        async def send_later(*args: Any, **options: Any) -> None:
            sent.append(partial(send, *args, **options))

        monkeypatch.setattr(served.runtime, "send", send_later)
        async with page.expect_request("**/say") as sending:
            await page.get_by_label("Message to the run").press("Enter")
        assert (await sending.value).post_data_json == {"input": "Also look at Bergen", "interrupt": True}
        await expect(page.get_by_label("Message to the run")).to_have_value("")
        await expect(page.get_by_text("Message sent, waiting for the run.")).to_be_visible()
        await sent.pop()()
        await expect(page.get_by_text("Message sent, waiting for the run.")).to_have_count(0)
        go_on.set()
        assert await served.wait(run.task_id) == "completed"
        await expect(page.locator(".path .state.completed")).to_be_visible()
        events = await served.runtime.log.read(run.task_id)
        added = [each for each in events if isinstance(each, MessageAddedEvent)]
        assert [each.content for each in added] == ["Also look at Bergen"]


async def test_cancelling_asks_once_and_passes_the_reason(page: Page) -> None:
    reached = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait forever."""
        reached.set()
        await asyncio.Event().wait()

    async with serve_agents(make_clerk(call("wait"), tools=[wait])) as served:
        run = await served.runtime.start("clerk", "Wait")
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(served.find_run(run.task_id))
        await find_button(page, "Cancel run…").click()
        await find_button(page, "Keep it running").click()
        await find_button(page, "Cancel run…").click()
        await page.get_by_label("Reason").fill("too slow")
        await find_button(page, "Cancel it").click()
        await expect(page.locator(".path .state.canceled")).to_be_visible()
        end = (await served.runtime.log.read(run.task_id))[-1]
        assert "too slow" in end.model_dump_json()


async def test_canceled_run_is_resumed_once_by_two_pages(page: Page, chromium: Browser) -> None:
    reached = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait forever."""
        reached.set()
        await asyncio.Event().wait()

    async with serve_agents(make_clerk(call("wait"), "Done.", "Again.", tools=[wait])) as served:
        run = await served.runtime.start("clerk", "Wait")
        await asyncio.wait_for(reached.wait(), 30)
        await served.runtime.cancel(run.task_id)
        async with open_page(chromium) as other:
            for each in (page, other):
                await each.goto(served.find_run(run.task_id))
                await expect(find_button(each, "Resume run")).to_be_visible()
            await find_button(page, "Resume run").click()
            await expect(page.locator(".path .state.completed")).to_be_visible()
            # The other page does not know yet that the run has continued.
            await find_button(other, "Resume run").click()
            await expect(other.locator(".path .state.completed")).to_be_visible()
            await expect(find_button(other, "Resume run")).to_have_count(0)
        events = await served.runtime.log.read(run.task_id)
        assert [event.kind for event in events].count("content-complete") == 2


async def test_failed_run_is_resumed_or_forked(page: Page) -> None:
    turns = (RateLimited("busy"), call("choose_city"), BadRequest("bad"), "Done.")

    @tool
    async def choose_city() -> str:
        """Choose."""
        return "Oslo"

    async with serve_agents(make_clerk(*turns, tools=[choose_city])) as served:
        task_id = await served.ask("Choose")
        await page.goto(served.find_run(task_id))
        await expect(page.locator(".path .state.failed")).to_be_visible()
        await find_button(page, "Resume run").click()
        # The second failure is permanent.
        await find_button(page, "Fork from the last checkpoint").click()
        await find_button(page, "Start the fork").click()
        # The page compares the fork with the run.
        await expect(page.get_by_role("heading", name="B Choose completed")).to_be_visible()
        await expect(page.get_by_role("gridcell", name="completed Done.")).to_be_visible()
        assert (await served.runtime.get_record(task_id)).state == "failed"


async def test_refused_resume_is_explained(page: Page) -> None:
    async with serve_agents(make_clerk(RateLimited("busy"), "Done.")) as served:
        task_id = await served.ask("Choose")
        problem = '{"error": {"code": "context_busy", "message": "busy"}}'
        await page.route("**/resume", lambda route: route.fulfill(status=409, body=problem))
        await page.goto(served.find_run(task_id))
        await find_button(page, "Resume run").click()
        await expect(page.get_by_role("alert")).to_contain_text("Another run of the conversation is active.")
        await expect(find_button(page, "Resume run")).to_be_enabled()


async def test_question_can_be_answered_after_a_restart_of_the_server(page: Page, tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_agents(make_clerk(call("refund", order="A1")), log=log) as served:
        task_id = await served.ask("Refund A1")
    await log.aclose()
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_agents(make_clerk("Done."), log=log) as served:
        await page.goto(served.find_run(task_id))
        await find_button(page, "Approve and run refund").click()
        await expect(page.locator(".path .state.completed")).to_be_visible()
        assert await read_results(served, task_id) == ["refunded A1"]
    await log.aclose()


async def test_result_or_error_of_a_client_tool_can_be_sent(page: Page) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [client_tool("measure", parameters), client_tool("weigh", parameters, result={"type": "number"})]
    turns = (call("measure", x=1), call("measure", x=2), call("weigh", x=3), "Done.")
    async with serve_agents(make_clerk(*turns, tools=tools)) as served:
        task_id = await served.ask("Measure")
        await page.goto(served.find_run(task_id))
        await page.get_by_label("Result as JSON").fill("{")
        await find_button(page, "Send the result").click()
        await expect(find_question(page).get_by_role("alert")).to_contain_text("is not JSON")
        await page.get_by_label("Result as JSON").fill('{"cm": 3}')
        await find_button(page, "Send the result").click()
        # The answered question is displayed until the run has received the answer.
        second = find_question(page).filter(has_text="x: 2")
        await second.get_by_text("Arguments").click()
        await expect(second.locator("details[open]")).to_contain_text("x: 2")
        await second.get_by_label("Error", exact=True).check()
        await second.get_by_label("Error message").fill("no ruler")
        await second.get_by_role("button", name="Send the error", exact=True).click()
        await page.get_by_label("Result", exact=True).and_(page.locator("[data-path]")).fill("7.5")
        await find_button(page, "Send the answer").click()
        await expect(find_question(page)).to_have_count(0)
        assert await served.wait(task_id) == "completed"
        events = await served.runtime.log.read(task_id)
        ends = [each for each in events if isinstance(each, ToolCompleteEvent)]
        assert [each.result if each.success else each.error for each in ends] == [{"cm": 3}, "no ruler", 7.5]


async def test_sign_in_address_is_text_and_no_credential_is_sent(page: Page) -> None:
    async with serve_agents(make_clerk(call("sign_in"), "Done.")) as served:
        task_id = await served.ask("Sign in")
        await page.goto(served.find_run(task_id))
        question = find_question(page)
        await expect(question.get_by_text("bank.example", exact=True)).to_be_visible()
        await expect(question).to_contain_text("https://bank.example/login?x=1")
        await expect(question.locator("a, input, textarea")).to_have_count(0)
        await find_button(page, "Decline to sign in").click()
        await expect(page.locator(".path .state.completed")).to_be_visible()


async def test_encrypted_credential_is_sent(page: Page) -> None:
    @tool
    async def sign_in_with_key(ctx: RunContext[Any]) -> str:
        """Sign in."""
        return await ctx.require_auth("bank", public_key="a public key")

    async with serve_agents(make_clerk(call("sign_in_with_key"), "Done.", tools=[sign_in_with_key])) as served:
        task_id = await served.ask("Sign in")
        await page.goto(served.find_run(task_id))
        await expect(find_question(page)).to_contain_text("a public key")
        await page.get_by_label("Encrypted credential").fill(" ciphertext ")
        async with page.expect_request("**/resume") as sending:
            await find_button(page, "Send the encrypted credential").click()
        body = (await sending.value).post_data_json
        assert body is not None
        assert [*body["inputs"].values()] == ["ciphertext"]
        await expect(page.locator(".path .state.completed")).to_be_visible()


async def test_page_without_agents_offers_no_action(page: Page) -> None:
    log = MemoryEventLog()
    async with Runtime({"clerk": make_clerk(call("refund", order="A1"))}, log=log) as runtime:
        run = await runtime.start("clerk", "Refund A1")
        await runtime.follow(run.task_id, until="attempt")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{run.task_id}")
        await expect(find_question(page)).to_contain_text("Refund A1?")
        await expect(page.locator(".acts button")).to_have_count(0)
        await expect(page.get_by_label("Message to the run")).to_have_count(0)


async def test_actions_use_the_key_of_the_reader(page: Page) -> None:
    async with serve_agents(make_clerk(call("refund", order="A1"), "Done."), auth=bearer({"ann-key": "ann"})) as served:
        run = await served.runtime.start("clerk", "Refund A1", owner="ann")
        await served.wait(run.task_id)
        await page.goto(served.find_run(run.task_id))
        await page.get_by_label("Key").fill("ann-key")
        await find_button(page, "Open").click()
        async with page.expect_request("**/resume") as sending:
            await find_button(page, "Approve and run refund").click()
        assert (await (await sending.value).all_headers())["authorization"] == "Bearer ann-key"
        await expect(page.locator(".path .state.completed")).to_be_visible()


@pytest.mark.service("axe")
@pytest.mark.parametrize("size", [(1680, 960), (390, 844)])
async def test_forms_have_no_barriers_and_fit_the_screen(page: Page, size: tuple[int, int]) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    async with serve_agents(make_clerk(call("book"))) as served:
        task_id = await served.ask("Book a room")
        await page.goto(served.find_run(task_id, "/conversation"))
        await page.get_by_role("button", name="Add to guests").click()
        await expect(find_question(page).get_by_label("age")).to_be_visible()
        assert await find_barriers(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= size[0]
        await expect(find_button(page, "Send the answer")).to_be_attached()
