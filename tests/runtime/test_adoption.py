"""Adoption of many orphaned runs at the start of a runtime."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.runtime.executor import RunExecutor
from rxloop.testing import ScriptedModel

RUNS = 50


class OrphanLog(MemoryEventLog):
    """Event log whose runs appear to be orphaned as soon as they are submitted."""

    @override
    async def list_orphaned(self, **options: Any) -> Any:
        return await self.list_runs(states=("submitted",))


async def test_adopted_runs_start_in_several_iterations_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    log = OrphanLog()
    agent = Agent(ScriptedModel(*["Hello."] * RUNS), name="clerk", log=log)
    task_ids = [(await agent.submit("Hi")).task_id for _ in range(RUNS)]
    iteration = 0
    scheduled: Counter[int] = Counter()
    schedule = RunExecutor.schedule

    def watch(self: RunExecutor, task_id: str, *args: Any, **options: Any) -> Any:
        scheduled[iteration] += 1
        return schedule(self, task_id, *args, **options)

    async def count() -> None:
        nonlocal iteration
        while True:
            await asyncio.sleep(0)
            iteration += 1

    monkeypatch.setattr(RunExecutor, "schedule", watch)
    counter = asyncio.create_task(count())
    async with Runtime({"clerk": agent}, log=log) as runtime:
        for task_id in task_ids:
            await runtime.follow(task_id)
    counter.cancel()
    assert scheduled.total() >= RUNS
    # The counter starts after the first run.
    assert max(scheduled.values()) <= 2
