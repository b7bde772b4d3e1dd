"""A fork in a runtime: it is driven like any other run, and outlives its process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, RxloopError
from rxloop.testing import ScriptedModel, frames


def runtime(log: MemoryEventLog, *turns: Any, **options: Any) -> Runtime:
    return Runtime({"a": Agent(ScriptedModel(*turns), thoughts=False)}, log=log, **options)


async def test_a_fork_has_the_owner_of_its_run_and_is_followed_live() -> None:
    log = MemoryEventLog()
    async with runtime(log, "Oslo.", frames("-Ber -gen.|", 0.01)) as made:
        record = await made.start("a", "Where?", owner="ann", metadata={"ticket": 7})
        assert [event async for event in made.follow(record.task_id)]
        fork = await made.fork(record.task_id, 1, prompt="Where else?")
        kinds = [event.kind async for event in made.follow(fork.task_id)]
        over = await made.get_record(fork.task_id)
    assert (over.state, over.owner, over.metadata["ticket"]) == ("completed", "ann", 7)
    assert kinds.count("content-delta") == 2
    assert record.task_id != fork.task_id


async def test_a_fork_that_goes_on_is_given_up_by_a_runtime_that_drains_and_taken_up_by_the_next() -> None:
    log = MemoryEventLog()
    async with runtime(log, "Oslo.", frames("-on and on", 0.01), grace=0) as made:
        record = await made.start("a", "Where?")
        assert [event async for event in made.follow(record.task_id)]
        fork = await made.fork(record.task_id, 1)
        async for event in made.follow(fork.task_id):
            if event.kind == "content-delta":
                break
    assert (await log.get_record(fork.task_id)).state == "working"
    async with runtime(log, "Bergen.") as other:
        async with asyncio.timeout(10):
            events = [event async for event in other.follow(fork.task_id)]
    assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


async def test_what_cannot_be_forked_is_said() -> None:
    log = MemoryEventLog()
    made = runtime(log, "Oslo.", "Bergen.")
    async with made:
        record = await made.start("a", "Where?")
        assert [event async for event in made.follow(record.task_id)]
        with pytest.raises(ConfigurationError, match="cannot be forked at=99"):
            await made.fork(record.task_id, 99)
    with pytest.raises(RxloopError, match="drains"):
        await made.fork(record.task_id, 1)
