"""Cold runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.subject import Subject

from rxloop import Agent, Limits, ModelRequest, RunContext, merge, op, tool
from rxloop.agents import ColdRun
from rxloop.errors import ConfigurationError, LimitReached, RunCancelled, RunError, ServerError
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.http_server import chat_model, start_server, text_reply
from support.run_checks import Recorder, assert_no_tasks, final_events, run_ready_tasks, wait_until


def last_question(request: ModelRequest) -> str:
    return str(request.messages[-1].text)


def echo(marbles: str = "-{}|") -> Agent[None, str]:
    """Return an agent that answers with the question, one character per frame."""

    def answer(request: ModelRequest) -> Any:
        return turn(frames(marbles.replace("{}", last_question(request))))

    return Agent(ScriptedModel(*[answer] * 20))


async def test_each_subscription_starts_its_own_run() -> None:
    model = ScriptedModel("one", "two")
    cold = Agent(model).observe("?")
    assert model.requests == []
    assert [(await cold.result()).output, (await cold.result()).output] == ["one", "two"]


async def test_cold_run_can_be_iterated_and_piped() -> None:
    agent = Agent(ScriptedModel("a", "b", "c"))
    assert [event.kind async for event in agent.observe("?")][-1] == "status-update"
    assert [text async for text in agent.observe("?").pipe(op.text())] == ["b"]
    assert [text async for text in agent.observe("?").text()] == ["c"]


def test_run_is_canceled_when_its_subscription_is_disposed() -> None:
    agent = echo("-{}---|")
    with virtual_time() as time:

        async def dispose() -> None:
            recorder = Recorder(agent.observe("?"))
            await asyncio.sleep(0.06)
            assert agent.model.open == 1  # type: ignore[attr-defined]
            recorder.subscription.dispose()
            await run_ready_tasks()
            assert agent.model.open == 0  # type: ignore[attr-defined]

        time.run(dispose())
        assert time.now == 0.06


async def test_run_with_a_live_handle_is_canceled_when_its_subscription_is_disposed() -> None:
    run = Agent(ScriptedModel(frames("-a"))).run("?")
    ColdRun(lambda: run).subscribe().dispose()
    with pytest.raises(RunCancelled, match="its subscription was disposed"):
        await run


async def test_run_is_canceled_when_its_iterator_is_closed() -> None:
    agent = Agent(ScriptedModel(frames("-a")))
    reader = aiter(agent.observe("?"))
    await anext(reader)
    await reader.aclose()
    await assert_no_tasks()


async def test_switch_latest_cancels_the_older_run_and_closes_its_socket() -> None:
    questions: Subject[str] = Subject()
    async with start_server() as server, contextlib.aclosing(chat_model(server)) as model:
        agent = Agent(model)
        server.answer(text_reply("Let me", end="hang"), text_reply("42"))
        recorder = Recorder(questions.pipe(ops.map(agent.observe), ops.switch_latest()))
        questions.on_next("old")
        await server.requested.wait()
        await wait_until(lambda: any(event.kind == "content-delta" for event in recorder.events))
        questions.on_next("new")
        questions.on_completed()
        await wait_until(lambda: recorder.completed)
        # Only the newer connection can be reused.
        await wait_until(lambda: server.connections == 2 and server.open == 1)
        assert [end.content for end in final_events(recorder.events)] == ["42"]
        assert len(server.requests) == 2
    await server.all_closed.wait()


async def test_events_of_failed_run_complete_and_its_result_raises() -> None:
    agent = Agent(ScriptedModel(ServerError("503"), ServerError("503"), ServerError("503")))
    last = await agent.observe("?")
    assert isinstance(last, StatusUpdateEvent)
    assert last.state == "failed"
    with pytest.raises(RunError, match="503"):
        await agent.observe("?").result()
    with pytest.raises(RunError, match="503"):
        await agent.observe("?").text()


async def test_stock_catch_operator_turns_errors_into_values() -> None:
    @tool
    async def again() -> str:
        """Go on."""
        return "on"

    agent = Agent(ScriptedModel(*[call("again")] * 3), tools=[again], limits=Limits(iterations=2))
    values = agent.observe("?").result().pipe(ops.catch(lambda error, _: rx.just(error)))
    error: Any = await values
    assert isinstance(error, LimitReached)
    assert len(error.result.messages) == 5


async def test_configuration_error_is_raised_through_the_subscription() -> None:
    recorder = Recorder(Agent(ScriptedModel()).observe(""))
    assert isinstance(recorder.error, ConfigurationError)


async def test_observe_accepts_the_options_of_run() -> None:
    async def instruct(ctx: RunContext[str]) -> str:
        return f"You help {ctx.deps}."

    model = ScriptedModel("a")
    agent = Agent(model, instructions=instruct, deps_type=str)
    await agent.observe("?", deps="Ann", metadata={"n": 1})
    assert model.requests[0].system[0].text == "You help Ann."


async def test_backpressure_reaches_runs_through_stock_operators() -> None:
    agent = echo("-{}" * 200 + "|")
    running: list[Any] = []
    questions = rx.from_iterable("ab").pipe(ops.flat_map(agent.observe))
    merged = merge(questions, overflow="block", buffer=4)
    gates = merged._hold.gate._gates  # type: ignore[attr-defined]
    reader = aiter(merged)
    await anext(reader)
    running = list(gates)
    assert len(running) == 2
    await wait_until(lambda: all(gate.closed for gate in running))
    async for _ in reader:
        if not any(gate.closed for gate in running):
            break
    await reader.aclose()
    assert not any(gate.closed for gate in running)
    assert gates == []
    await assert_no_tasks()


async def test_run_that_starts_while_the_reader_is_blocked_waits_too() -> None:
    agent = echo("-{}" * 50 + "|")
    questions: Subject[str] = Subject()
    merged = merge(questions.pipe(ops.flat_map(agent.observe)), overflow="block", buffer=2)
    reader = aiter(merged)
    first = asyncio.ensure_future(anext(reader))
    await run_ready_tasks(1)
    questions.on_next("a")
    await first
    await wait_until(lambda: merged._hold.gate.closed)
    questions.on_next("b")
    assert [gate.closed for gate in merged._hold.gate._gates] == [True, True]  # type: ignore[attr-defined]
    await reader.aclose()
    await assert_no_tasks()
