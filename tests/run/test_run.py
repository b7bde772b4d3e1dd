from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from rxloop import Agent, op
from rxloop.errors import (
    RateLimited,
    RunCancelled,
    RunError,
    RxloopError,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames
from support.run_checks import Recorder, assert_ended, assert_no_tasks, assert_numbered, kinds, wait_until
from support.sum_tools import add

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="nothing")


async def test_runs_can_be_awaited_by_gather_task_group_and_wait_for() -> None:
    agent = Agent(ScriptedModel(*["Hi."] * 6))
    first, second = await asyncio.gather(agent.run("1"), agent.run("2"))
    async with asyncio.TaskGroup() as group:
        third = group.create_task(agent.run("3").result())
        fourth = group.create_task(agent.run("4").result())
    fifth = await asyncio.wait_for(agent.run("5"), 10)
    async with asyncio.timeout(10):
        sixth = await agent.run("6")
    results = [first, second, third.result(), fourth.result(), fifth, sixth]
    assert [result.output for result in results] == ["Hi."] * 6


def test_result_can_be_passed_to_asyncio_run() -> None:
    agent = Agent(ScriptedModel("Hi.", "Hi."))
    assert asyncio.run(agent.run("1").result()).output == "Hi."
    assert agent.run_sync("2").output == "Hi."


def test_use_of_a_run_outside_a_loop_raises_with_the_remedy() -> None:
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    for use in (lambda: run.events.subscribe(print), lambda: run.pipe(op.text()).subscribe(print)):
        with pytest.raises(RxloopError, match=r"asyncio\.run\(run\.result\(\)\)"):
            use()
    with pytest.raises(RxloopError, match="run_sync"):
        run.result().send(None)
    assert asyncio.run(run.result()).output == "Hi.", "the failed uses must not affect the run"


def test_run_of_another_event_loop_is_rejected() -> None:
    agent = Agent(ScriptedModel("Hi."))

    async def finish_run() -> Any:
        run = agent.run("Go.")
        await run
        return run

    run = asyncio.run(finish_run())
    with pytest.raises(RxloopError, match="another event loop"):
        asyncio.run(run.result())


async def test_run_sync_inside_a_loop_raises_with_the_remedy() -> None:
    with pytest.raises(RxloopError, match=r"await agent\.run"):
        Agent(ScriptedModel("Hi.")).run_sync("Go.")


async def test_fifty_concurrent_runs_of_one_agent_are_independent() -> None:  # L85
    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f"It is {request.messages[-1].text}."
        return call("add", a=int(request.messages[0].text), b=0)

    agent = Agent(ScriptedModel(*[answer] * 100), tools=[add])
    runs = [agent.run(str(number)) for number in range(50)]
    recorders = [Recorder(run.events) for run in runs]
    results = await asyncio.gather(*runs)
    assert [result.output for result in results] == [f"It is {number}." for number in range(50)]
    for run, recorder in zip(runs, recorders, strict=True):
        assert_numbered(recorder.events)
        assert {event.task_id for event in recorder.events} == {run.task_id}
        assert_ended(recorder.events, "completed")
    assert len({run.task_id for run in runs}) == len({run.context_id for run in runs}) == 50
    await assert_no_tasks()


async def test_concurrent_conversations_are_independent() -> None:  # L138
    agent = Agent(ScriptedModel(*[lambda request: str(len(request.messages))] * 4), log=MemoryEventLog())
    for expected in ("1", "3"):
        ann, bob = await asyncio.gather(agent.run("Hi", context_id="ann"), agent.run("Hi", context_id="bob"))
        assert (ann.output, bob.output) == (expected, expected)


async def test_agent_is_usable_after_a_failed_run() -> None:
    agent = Agent(ScriptedModel(RateLimited("slow down"), "Hi."))
    with pytest.raises(RunError):
        await agent.run("1")
    assert (await agent.run("2")).output == "Hi."


async def test_each_awaiter_of_a_canceled_run_gets_run_canceled() -> None:  # L5
    run = Agent(ScriptedModel(frames("-a-"))).run("Go.")
    recorder = Recorder(run.events)
    waiters = [asyncio.ensure_future(run.result()) for _ in range(3)]
    await wait_until(lambda: "content-delta" in kinds(recorder.events))
    run.cancel("the user went home")
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(error) for error in outcomes] == [RunCancelled] * 3
    assert len({id(error) for error in outcomes}) == 3
    final = assert_ended(recorder.events, "canceled", "canceled")
    assert final.error is not None
    assert final.error.message == "the user went home"
    assert "the user went home" in str(outcomes[0])
