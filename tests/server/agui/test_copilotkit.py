"""Runs over AG-UI with CopilotKit: the core of its front ends, its runtime, and the older AG-UI client that it uses.

`RXLOOP_AGUI_RUNS` sets the number of generated runs (default: 15).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings

from rxloop import Agent, CustomEvent, RunContext, tool
from rxloop.recorded.replay import history
from rxloop.testing import ScriptedModel, call, turn
from support.api_server import TRUSTED
from support.clients.agui import Client, ClientResult, Node, copilotkit, serve_agui
from support.clients.agui_threads import (
    answer_interrupt,
    assert_equal,
    client_shape,
    disturb,
    log_shape,
    stable_messages,
)
from support.faulty_components import PLANTED
from support.random_runs import SHOW_MAP, RandomRun, random_run

pytestmark = [pytest.mark.service("node-clients"), pytest.mark.asyncio(loop_scope="module")]

RUNS = int(os.environ.get("RXLOOP_AGUI_RUNS", "15"))
SHOWN = '{"shown":true}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages() -> AsyncGenerator[Node]:
    async with copilotkit() as pages:
        yield pages


threads = (f"thread-{number}" for number in itertools.count())
"""Thread ids. The runtime of CopilotKit keeps all threads of a process."""


async def answer_all(kind: RandomRun, page: Client, stream: ClientResult, result: str) -> ClientResult:
    for _ in range(6):
        # CopilotKit tries to continue after its own tools, although interrupts are still open.
        is_early = stream.error is not None and "not addressed by resume" in stream.error
        assert stream.error is None or (is_early and stream.pendingInterrupts), stream.error
        assert [each for each in stream.warnings if "not addressed by resume" not in each] == []
        if not stream.pendingInterrupts:
            break
        resume = [answer_interrupt(kind, each) for each in stream.pendingInterrupts]
        stream = await page.run(resume=resume, tools=[SHOW_MAP], result=result)
    return stream


async def check(kind: RandomRun, pages: Node) -> None:
    log, thread = kind.log(), next(threads)
    result = '{"error":"no map here"}' if kind.declines else SHOWN
    async with serve_agui(kind.agent(), log=log, auth=TRUSTED) as served:
        disturbing = asyncio.create_task(disturb(kind, served))
        page = pages.agent(served.url, thread)
        try:
            first = await page.send("Go.", tools=[SHOW_MAP], result=result)
            stream = await answer_all(kind, page, first, result)
        finally:
            disturbing.cancel()
            await asyncio.wait([disturbing])
        [record] = await log.list_runs(context_id=thread)
        stored = await history(log, thread, public=True)
        reloaded = await pages.agent(served.url, thread, reload_of=page).connect()
    assert PLANTED not in str(stream)
    assert_equal(stable_messages(reloaded.messages), stable_messages(stream.messages))
    if record.state == "completed":
        assert_equal(client_shape(stable_messages(stream.messages)), log_shape(stored))


# Examples are not shrunk because each one starts a server.
@settings(
    max_examples=RUNS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(kind=random_run())
async def test_copilotkit_shows_generated_runs_as_logged(kind: RandomRun, pages: Node) -> None:
    await check(kind, pages)


# -- single features


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def paint(color: str, ctx: RunContext) -> str:
    """Change the color of the page."""
    ctx.emit(CustomEvent(name="page", data={"color": color}))
    return f"It is {color} now."


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay, paint], thoughts=False, name="clerk", **options)


async def test_calls_of_front_end_tools_are_executed_and_the_run_continues(pages: Node) -> None:
    calls = [call("show_map", "0", city="Oslo"), call("show_map", "1", city="Rome")]
    model = ScriptedModel(calls, [call("show_map", "2", city="Bern")], "There.")
    async with serve_agui(Agent(model, thoughts=False, name="clerk")) as served:
        stream = (await pages.agent(served.url, next(threads)).send("Where?", tools=[SHOW_MAP], result=SHOWN)).check()
        [record] = await served.runtime.log.list_runs()
    assert stream.messages[-1]["content"] == "There."
    assert stream.types.count("RUN_FINISHED") == 3
    results = [message.text for message in model.requests[-1].messages if message.role == "tool"]
    assert results == [SHOWN] * 3
    assert record.state == "completed"


@pytest.mark.parametrize(
    ("status", "expected"),
    [("resolved", ["paid 5", "paid 7"]), ("cancelled", ["The call of pay was not approved."] * 2)],
)
async def test_interrupts_are_answered(status: str, expected: list[str], pages: Node) -> None:
    agent = make_clerk([call("pay", "0", amount=5), call("pay", "1", amount=7)], "Done.")
    async with serve_agui(agent) as served:
        page = pages.agent(served.url, next(threads))
        stream = (await page.send("Pay.")).check()
        assert len(stream.pendingInterrupts) == 2
        resume = [{"interruptId": each["id"], "status": status, "payload": True} for each in stream.pendingInterrupts]
        stream = (await page.run(resume=resume)).check()
    assert stream.pendingInterrupts == []
    assert [each["content"] for each in stream.messages if each["role"] == "tool"] == expected
    assert stream.messages[-1]["content"] == "Done."


async def test_front_end_tool_next_to_an_interrupt_is_answered_with_it(pages: Node) -> None:
    agent = make_clerk([call("show_map", "0", city="Oslo"), call("pay", "1", amount=5)], "Done.")
    async with serve_agui(agent) as served:
        page = pages.agent(served.url, next(threads))
        stream = await page.send("Go.", tools=[SHOW_MAP], result=SHOWN)
        assert "pending interrupt(s) not addressed" in str(stream.error)
        resume = [
            {"interruptId": each["id"], "status": "resolved", "payload": True} for each in stream.pendingInterrupts
        ]
        stream = (await page.run(resume=resume)).check()
    assert [each["content"] for each in stream.messages if each["role"] == "tool"] == [SHOWN, "paid 5"]
    assert stream.messages[-1]["content"] == "Done."


async def test_state_reaches_the_page(pages: Node) -> None:
    async with serve_agui(make_clerk(call("paint", color="red"), "Done."), state="page") as served:
        stream = (await pages.agent(served.url, next(threads)).send("Paint.")).check()
    assert stream.state == {"color": "red"}


async def test_messages_of_nested_agents_name_their_run(pages: Node) -> None:
    child = Agent(ScriptedModel("I know."), thoughts=False, name="expert").as_tool(description="Knows.")
    agent = Agent(ScriptedModel(call("expert", prompt="Say it."), "He knows."), tools=[child], name="clerk")
    async with serve_agui(agent) as served:
        stream = (await pages.agent(served.url, next(threads)).send("Ask.")).check()
    [started] = stream.select("SUBAGENT_STARTED")
    said = {each.get("subagentRunId"): each["content"] for each in stream.messages if each.get("content")}
    assert said[started["subagentRunId"]] == "I know."
    assert stream.messages[-1]["content"] == "He knows."


async def test_thread_continues_after_a_failed_run(pages: Node) -> None:
    agent = make_clerk(RuntimeError("broken"), "Here again.")
    async with serve_agui(agent) as served:
        page = pages.agent(served.url, next(threads))
        failed = await page.send("Go.")
        assert failed.last["type"] == "RUN_ERROR"
        assert failed.last["code"] == "error"
        stream = (await page.send("Again.")).check()
    assert stream.messages[-1]["content"] == "Here again."


async def test_stop_button_cancels_the_run(pages: Node) -> None:
    @tool
    async def toil(ctx: RunContext) -> None:
        """Work forever."""
        ctx.progress("begun")
        await asyncio.Event().wait()

    agent = Agent(ScriptedModel(call("toil"), "Back."), tools=[toil], thoughts=False, name="clerk")
    async with serve_agui(agent) as served:
        page = pages.agent(served.url, next(threads))
        stopped = await page.send("Toil.", abort_after=7)
        assert (stopped.last["type"], stopped.last["code"]) == ("RUN_ERROR", "abort")
        [record] = await served.runtime.log.list_runs()
        async for _ in served.runtime.follow(record.task_id):
            pass
        assert (await served.runtime.get_record(record.task_id)).state == "canceled"
        stream = (await page.send("Again.")).check()
    assert stream.messages[-1]["content"] == "Back."


async def test_run_that_another_client_cancels_ends_without_an_error(pages: Node) -> None:
    began = asyncio.Event()

    @tool
    async def toil() -> None:
        """Work forever."""
        began.set()
        await asyncio.Event().wait()

    agent = Agent(ScriptedModel(call("toil"), "Back."), tools=[toil], thoughts=False, name="clerk")
    async with serve_agui(agent) as served:
        page = pages.agent(served.url, next(threads))
        sending = asyncio.create_task(page.send("Toil."))
        await began.wait()
        [record] = await served.runtime.log.list_runs()
        await served.runtime.cancel(record.task_id)
        stream = (await sending).check()
    assert stream.last["type"] == "RUN_FINISHED"
    assert "outcome" not in stream.last


async def test_page_is_restored_after_a_reload(pages: Node) -> None:
    agent = make_clerk(
        turn("Let me see.", reasoning="Hm.", calls=[call("paint", color="red")]), "Done.", "Here.", "Again."
    )
    async with serve_agui(agent) as served:
        thread = next(threads)
        page = pages.agent(served.url, thread)
        await page.send("Go.")
        stream = (await page.send("And again.")).check()
        reloaded = pages.agent(served.url, thread, reload_of=page)
        restored = await reloaded.connect()
        assert restored.messages == stream.messages
        continued = (await reloaded.send("More?")).check()
    assert continued.messages[-1]["content"] == "Again."
