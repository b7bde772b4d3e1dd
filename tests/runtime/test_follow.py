"""Event streams across attempts and failures."""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.pipeline.records import RunRecord
from rxloop.testing import ScriptedModel, call


@tool
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"


async def test_follow_includes_the_events_before_a_canceled_attempt() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("work"), "Done."), tools=[work], thoughts=False, log=log, name="a")
    run = await agent.run("Work").begin()
    async for event in run.events:
        if event.kind == "tool-start":
            break
    await agent.get_run(run.task_id).cancel()
    await agent.resume(run.task_id)
    async with Runtime({"a": agent}, log=log) as runtime:
        events = [event async for event in runtime.follow(run.task_id)]
    assert [event.seq for event in events] == [event.seq for event in await log.read(run.task_id)]
    assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


async def test_follow_continues_after_a_rejected_attempt() -> None:
    class FailingLog(MemoryEventLog):
        reads = 0

        async def list_runs(self, **options: Any) -> Any:
            self.reads += 1
            if self.reads == 1:  # first read
                raise ValueError("a mistake in the log")
            return await super().list_runs(**options)

    log = FailingLog()
    agent = Agent(ScriptedModel("Hello."), thoughts=False)

    async def load_deps(record: RunRecord) -> None:
        await asyncio.sleep(0)

    async with Runtime({"a": agent}, log=log, deps=load_deps) as runtime:
        record = await runtime.start("a", "Hi")
        events = [event async for event in runtime.follow(record.task_id)]
    assert log.reads > 1
    assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
