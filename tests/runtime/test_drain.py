"""Draining runtimes."""

from __future__ import annotations

import asyncio

import pytest

from rxloop import (
    MemoryEventLog,
    Runtime,
    tool,
)
from rxloop.testing import call, virtual_time
from support.run_checks import assert_no_tasks
from support.slow_agent import agent, work


def test_drain_starts_no_queued_run(log: MemoryEventLog) -> None:
    async def main() -> None:
        model = agent(*[call("work"), "Done."] * 3, tools=[work])
        async with Runtime({"a": model}, log=log, concurrency=1, grace=90) as runtime:
            records = [await runtime.start("a", "Hi") for _ in range(3)]
            await asyncio.sleep(1)
        assert [(await log.get_record(record.task_id)).state for record in records] == [
            "completed",
            "submitted",
            "submitted",
        ]
        assert time.now < 61

    with virtual_time() as time:
        time.run(main())


def test_drain_waits_for_a_call_that_cannot_be_repeated(log: MemoryEventLog) -> None:  # L140
    starts: list[float] = []

    @tool
    async def pay_slowly(amount: int) -> str:
        """Pays."""
        starts.append(time.now)
        await asyncio.sleep(9)
        return "paid"

    async def main() -> None:
        turns = [call("pay_slowly", amount=1), call("pay_slowly", amount=2), "Paid."]
        paying_agent = agent(*turns, tools=[pay_slowly])
        async with Runtime({"a": paying_agent}, log=log) as first:
            record = await first.start("a", "Hi")
            await asyncio.sleep(1)
            await first.drain(10)
            assert time.now == pytest.approx(9, abs=0.5)  # when this call ends
        assert (await log.get_record(record.task_id)).state == "working"
        async with Runtime({"a": agent(*turns[1:], tools=[pay_slowly])}, log=log) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        completions = [event for event in events if event.kind == "tool-complete"]
        assert [event.success for event in completions] == [True, True]
        assert len(starts) == 2

    with virtual_time() as time:
        time.run(main())


def test_drain_interrupts_a_call_at_its_deadline(log: MemoryEventLog) -> None:
    async def main() -> None:
        async with Runtime({"a": agent(call("work"), tools=[work])}, log=log) as runtime:
            await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            await runtime.drain(10)
            assert time.now == pytest.approx(11, abs=0.5)
        await assert_no_tasks()

    with virtual_time() as time:
        time.run(main())


def test_canceled_drain_releases_the_runs(log: MemoryEventLog) -> None:
    async def serve(runtime: Runtime) -> str:
        async with runtime:
            record = await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            return record.task_id

    async def main() -> None:
        runtime = Runtime({"a": agent(call("work"), tools=[work])}, log=log)
        server = asyncio.create_task(serve(runtime))
        await asyncio.sleep(2)
        server.cancel()
        await asyncio.wait([server])
        assert server.cancelled()
        await assert_no_tasks()
        assert [record.state for record in await log.list_runs()] == ["working"]

    with virtual_time() as time:
        time.run(main())
