"""Forks in a runtime are executed like other runs and outlive their process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, RxloopError
from rxloop.testing import ScriptedModel, frames


def make_runtime(log: MemoryEventLog, *turns: Any, **options: Any) -> Runtime:
    return Runtime({"a": Agent(ScriptedModel(*turns), thoughts=False)}, log=log, **options)


async def test_fork_keeps_the_owner_and_can_be_followed_live() -> None:
    log = MemoryEventLog()
    async with make_runtime(log, "Oslo.", frames("-Ber -gen.|", 0.01)) as fork_runtime:
        record = await fork_runtime.start("a", "Where?", owner="ann", metadata={"ticket": 7})
        assert [event async for event in fork_runtime.follow(record.task_id)]
        fork = await fork_runtime.fork(record.task_id, 1, prompt="Where else?")
        kinds = [event.kind async for event in fork_runtime.follow(fork.task_id)]
        forked = await fork_runtime.get_record(fork.task_id)
    assert forked.state == "completed"
    assert forked.owner == "ann"
    assert forked.metadata["ticket"] == 7
    assert kinds.count("content-delta") == 2
    assert record.task_id != fork.task_id


async def test_working_fork_is_released_by_drain_and_adopted_by_the_next_runtime() -> None:
    log = MemoryEventLog()
    async with make_runtime(log, "Oslo.", frames("-on and on", 0.01), grace=0) as fork_runtime:
        record = await fork_runtime.start("a", "Where?")
        assert [event async for event in fork_runtime.follow(record.task_id)]
        fork = await fork_runtime.fork(record.task_id, 1)
        async for event in fork_runtime.follow(fork.task_id):
            if event.kind == "content-delta":
                break
    assert (await log.get_record(fork.task_id)).state == "working"
    async with make_runtime(log, "Bergen.") as other:
        async with asyncio.timeout(10):
            events = [event async for event in other.follow(fork.task_id)]
    assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


async def test_fork_raises_for_invalid_position_and_drained_runtime() -> None:
    log = MemoryEventLog()
    fork_runtime = make_runtime(log, "Oslo.", "Bergen.")
    async with fork_runtime:
        record = await fork_runtime.start("a", "Where?")
        assert [event async for event in fork_runtime.follow(record.task_id)]
        with pytest.raises(ConfigurationError, match=r"at must not exceed .* got 99"):
            await fork_runtime.fork(record.task_id, 99)
    with pytest.raises(RxloopError, match="is draining"):
        await fork_runtime.fork(record.task_id, 1)
