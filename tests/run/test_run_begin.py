"""`await run.begin()`: whether a run is accepted, before anything is asked; and `run.start()`, which does not wait."""

import asyncio
from pathlib import Path

import pytest

from rxloop import Agent, MemoryEventLog, RunCancelled, SqliteEventLog
from rxloop.errors import ContextBusy, EventLogError, InvalidInput, UnknownRun
from rxloop.testing import ScriptedModel, call, frames


async def test_a_run_that_is_accepted_is_in_the_log_and_goes_on(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "a.db")
    run = Agent(ScriptedModel(frames("-Hi-|", 0.001)), log=log).run("Hello")

    assert await run.begin() is run

    assert [event.kind for event in await log.read(run.task_id)][:2] == ["task", "status-update"]
    assert (await run).output == "Hi"
    await log.aclose()


async def test_a_run_without_a_log_is_accepted() -> None:
    run = await Agent(ScriptedModel("Hi")).run("Hello").begin()

    assert (await run).output == "Hi"


async def test_what_is_begun_twice_runs_once() -> None:
    model = ScriptedModel("Hi")
    run = Agent(model).run("Hello")

    await asyncio.gather(run.begin(), run.begin())
    await run.begin()
    await run
    await run.begin()

    assert len(model.requests) == 1


async def test_a_busy_conversation_refuses_at_once_and_the_model_is_not_asked() -> None:
    first, second = ScriptedModel(frames("---|")), ScriptedModel("never")
    log = MemoryEventLog()
    async with Agent(first, log=log).run("1", context_id="c") as running:
        await running.begin()

        with pytest.raises(ContextBusy):
            await Agent(second, log=log).run("2", context_id="c").begin()

        assert second.requests == []


async def test_an_unknown_run_and_a_wrong_answer_are_refused() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")

    with pytest.raises(UnknownRun):
        await agent.resume("none").begin()
    with pytest.raises(InvalidInput):
        await agent.resume(result.task_id, inputs={"x": 1}).begin()


async def test_a_run_that_is_over_is_accepted_and_gives_its_end() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")

    again = await agent.resume(result.task_id).begin()

    assert (await again).output == "Hi"


async def test_a_log_that_cannot_be_written_is_told() -> None:
    class Broken(MemoryEventLog):
        async def append(self, *args: object, **options: object) -> None:
            raise EventLogError("the disk is full", retryable=False)

    with pytest.raises(EventLogError, match="the disk is full"):
        await Agent(ScriptedModel(frames("---|")), log=Broken()).run("Hello").begin()


async def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_is_begun_and_over() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(frames("---|")), log=log).run("1", context_id="c") as running:
        await running.begin()
        waiting = Agent(ScriptedModel("never"), log=log).run("2", context_id="c", when_busy="wait")
        begun = asyncio.create_task(waiting.begin())
        await asyncio.sleep(0)
        waiting.cancel("not any more")

        assert await begun is waiting
        with pytest.raises(RunCancelled, match="not any more"):
            await waiting


async def test_a_run_that_is_started_goes_on_while_it_is_held() -> None:
    run = Agent(ScriptedModel(call("nothing"), "Hi")).run("Hello").start()

    assert run.started
    assert (await run).output == "Hi"
