"""One run as a stream, over its attempts and through what goes wrong with them."""

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


async def test_the_past_of_a_run_is_read_beyond_an_attempt_that_was_cancelled() -> None:
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


async def test_an_attempt_that_is_refused_is_no_end_for_a_follower() -> None:
    class Away(MemoryEventLog):
        reads = 0

        async def list_runs(self, **options: Any) -> Any:
            self.reads += 1
            if self.reads == 1:  # by the attempt
                raise ValueError("a mistake in the log")
            return await super().list_runs(**options)

    log = Away()
    agent = Agent(ScriptedModel("Hello."), thoughts=False)

    async def deps_of(record: RunRecord) -> None:
        await asyncio.sleep(0)

    async with Runtime({"a": agent}, log=log, deps=deps_of) as runtime:
        record = await runtime.start("a", "Hi")
        events = [event async for event in runtime.follow(record.task_id)]
    assert log.reads > 1
    assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
