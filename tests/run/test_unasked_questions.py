"""Questions asked outside of tool calls that no code asks any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, RunCancelled, RunContext, Signal, op, replay, tool
from rxloop.errors import RunError
from rxloop.protocol.events import Event, StatusUpdateEvent
from rxloop.recorded import list_pending
from rxloop.testing import ScriptedModel, call


@op.on(ModelRequest)
async def confirm(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Ask before each request."""
    if await ctx.ask("Ask the model?"):
        yield request


@tool
async def work() -> str:
    """Work."""
    return "worked"


def make_agent(log: EventLog, *turns: Any, asks: bool) -> Agent[None, str]:
    loop = op.standard(before_model=[confirm]) if asks else None
    return Agent(ScriptedModel(*turns), name="clerk", tools=[work], log=log, loop=loop, thoughts=False)


async def read_end(log: EventLog, task_id: str) -> StatusUpdateEvent:
    end = (await log.read(task_id))[-1]
    assert isinstance(end, StatusUpdateEvent)
    return end


async def list_ids(log: EventLog) -> list[str]:
    return [each.record.task_id for each in await list_pending(log)]


async def interrupt_after_question(log: EventLog) -> tuple[EventLog, str]:
    """Return a log and a run whose process was killed after its guard had asked, before the run paused."""
    asked = await make_agent(log, "Done.", asks=True).run("Hi", context_id="c")
    events: list[Event] = [event for event in await log.read(asked.task_id) if not getattr(event, "final", False)]
    interrupted = MemoryEventLog()
    await interrupted.append(asked.task_id, events, expected_seq=0)
    assert await list_ids(interrupted) == [asked.task_id]
    return interrupted, asked.task_id


async def test_question_of_a_removed_guard_does_not_pause_the_resumed_run() -> None:
    log, task_id = await interrupt_after_question(MemoryEventLog())
    result = await make_agent(log, call("work"), "Done.", asks=False).resume(task_id)
    assert (result.state, result.output, result.pending) == ("completed", "Done.", [])
    assert await list_ids(log) == []
    assert (await replay(log, task_id).result()).pending == []


async def test_question_is_asked_again_by_the_same_guard_of_a_resumed_run() -> None:
    log, task_id = await interrupt_after_question(MemoryEventLog())
    result = await make_agent(log, "Done.", asks=True).resume(task_id)
    assert (result.state, [each.input_id for each in result.pending]) == ("input-required", ["1.confirm.1"])
    assert await list_ids(log) == [task_id]


@pytest.mark.parametrize("prompt", [None, "Go on"])
async def test_fork_without_the_guard_does_not_wait_for_its_question(prompt: str | None) -> None:
    log = MemoryEventLog()
    asked = await make_agent(log, asks=True).run("Hi")
    at = (await log.get_record(asked.task_id)).seq
    forked = await make_agent(log, "Done.", asks=False).fork(asked.task_id, at=at, prompt=prompt)
    assert (forked.state, forked.pending) == ("completed", [])
    assert await list_ids(log) == [asked.task_id]


async def test_cancelled_run_has_no_pending_question_of_a_guard() -> None:
    log = MemoryEventLog()
    agent = make_agent(log, asks=True)
    asked = await agent.run("Hi")
    await agent.get_run(asked.task_id).cancel("no answer")
    assert (await read_end(log, asked.task_id)).pending == []
    assert (await replay(log, asked.task_id).result()).pending == []


async def test_run_cancelled_while_on_input_is_called_has_no_pending_question() -> None:
    async def wait(_: Any) -> None:
        await asyncio.Future()

    log = MemoryEventLog()
    run = make_agent(log, asks=True).run("Hi", on_input=wait)
    async for event in run:
        if event.kind == "input-required":
            run.cancel()
    with pytest.raises(RunCancelled):
        await run
    assert (await read_end(log, run.task_id)).pending == []


async def test_failed_run_has_no_pending_question_of_a_guard() -> None:
    async def fail(_: Any) -> bool:
        raise OSError("the terminal is gone")

    log = MemoryEventLog()
    run = make_agent(log, asks=True).run("Hi", on_input=fail)
    with pytest.raises(RunError):
        await run
    assert (await read_end(log, run.task_id)).pending == []
    assert (await replay(log, run.task_id).result()).pending == []
