"""`await run.begin()` waits until a run is accepted. `run.start()` does not wait."""

import asyncio
from pathlib import Path

import pytest

from rxloop import Agent, MemoryEventLog, RunCancelled, SqliteEventLog
from rxloop.errors import ContextBusy, EventLogError, InvalidInput, UnknownRun
from rxloop.testing import ScriptedModel, call, frames


async def test_begin_returns_when_the_run_is_recorded(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "a.db")
    run = Agent(ScriptedModel(frames("-Hi-|", 0.001)), log=log).run("Hello")

    assert await run.begin() is run

    assert [event.kind for event in await log.read(run.task_id)][:2] == ["task", "status-update"]
    assert (await run).output == "Hi"
    await log.aclose()


async def test_begin_accepts_a_run_without_log() -> None:
    run = await Agent(ScriptedModel("Hi")).run("Hello").begin()

    assert (await run).output == "Hi"


async def test_begin_twice_starts_the_run_once() -> None:
    model = ScriptedModel("Hi")
    run = Agent(model).run("Hello")

    await asyncio.gather(run.begin(), run.begin())
    await run.begin()
    await run
    await run.begin()

    assert len(model.requests) == 1


async def test_begin_raises_in_a_busy_conversation_without_a_model_call() -> None:
    first, second = ScriptedModel(frames("---|")), ScriptedModel("never")
    log = MemoryEventLog()
    async with Agent(first, log=log).run("1", context_id="c") as running:
        await running.begin()

        with pytest.raises(ContextBusy):
            await Agent(second, log=log).run("2", context_id="c").begin()

        assert second.requests == []


async def test_begin_raises_for_unknown_run_and_invalid_answer() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")

    with pytest.raises(UnknownRun):
        await agent.resume("none").begin()
    with pytest.raises(InvalidInput):
        await agent.resume(result.task_id, inputs={"x": 1}).begin()


async def test_begin_accepts_a_finished_run() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")

    resumed = await agent.resume(result.task_id).begin()

    assert (await resumed).output == "Hi"


async def test_begin_raises_when_the_log_is_unwritable() -> None:
    class FullLog(MemoryEventLog):
        async def append(self, *args: object, **options: object) -> None:
            raise EventLogError("the disk is full", retryable=False)

    with pytest.raises(EventLogError, match="the disk is full"):
        await Agent(ScriptedModel(frames("---|")), log=FullLog()).run("Hello").begin()


async def test_begin_returns_when_the_run_is_canceled_while_it_waits_for_the_conversation() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(frames("---|")), log=log).run("1", context_id="c") as running:
        await running.begin()
        queued = Agent(ScriptedModel("never"), log=log).run("2", context_id="c", when_busy="wait")
        begin_task = asyncio.create_task(queued.begin())
        await asyncio.sleep(0)
        queued.cancel("not any more")

        assert await begin_task is queued
        with pytest.raises(RunCancelled, match="not any more"):
            await queued


async def test_start_runs_in_the_background() -> None:
    run = Agent(ScriptedModel(call("nothing"), "Hi")).run("Hello").start()

    assert run.started
    assert (await run).output == "Hi"
