"""A runtime that drains: what it gives up, what it lets end, and what it begins no more."""

from __future__ import annotations

import asyncio

import pytest

from rxloop import (
    MemoryEventLog,
    Runtime,
    tool,
)
from rxloop.testing import call, virtual_time
from support.run_checks import nothing_left
from support.slow_agent import agent, work


def test_a_run_that_waits_for_room_is_not_begun_by_a_runtime_that_drains(log: MemoryEventLog) -> None:
    async def main() -> None:
        model = agent(*[call("work"), "Done."] * 3, tools=[work])
        async with Runtime({"a": model}, log=log, concurrency=1, grace=90) as runtime:
            records = [await runtime.start("a", "Hi") for _ in range(3)]
            await asyncio.sleep(1)
        assert [(await log.get_record(each.task_id)).state for each in records] == [
            "completed",
            "submitted",
            "submitted",
        ]
        assert time.now < 61

    with virtual_time() as time:
        time.run(main())


def test_a_call_that_nobody_can_make_again_may_end_before_its_run_is_given_up(log: MemoryEventLog) -> None:  # L140
    began: list[float] = []

    @tool
    async def pay_slowly(amount: int) -> str:
        """Pays."""
        began.append(time.now)
        await asyncio.sleep(9)
        return "paid"

    async def main() -> None:
        turns = [call("pay_slowly", amount=1), call("pay_slowly", amount=2), "Paid."]
        paying = agent(*turns, tools=[pay_slowly])
        async with Runtime({"a": paying}, log=log) as first:
            record = await first.start("a", "Hi")
            await asyncio.sleep(1)
            await first.drain(10)
            assert time.now == pytest.approx(9, abs=0.5)  # with the call, and before the deadline
        assert (await log.get_record(record.task_id)).state == "working"
        async with Runtime({"a": agent(*turns[1:], tools=[pay_slowly])}, log=log) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        ends = [event for event in events if event.kind == "tool-complete"]
        assert [event.success for event in ends] == [True, True]
        assert len(began) == 2

    with virtual_time() as time:
        time.run(main())


def test_a_call_that_takes_longer_than_the_deadline_is_cut_off(log: MemoryEventLog) -> None:
    async def main() -> None:
        async with Runtime({"a": agent(call("work"), tools=[work])}, log=log) as runtime:
            await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            await runtime.drain(10)
            assert time.now == pytest.approx(11, abs=0.5)
        await nothing_left()

    with virtual_time() as time:
        time.run(main())


def test_a_drain_that_is_cancelled_gives_the_runs_up_all_the_same(log: MemoryEventLog) -> None:
    async def serve(runtime: Runtime) -> str:
        async with runtime:
            record = await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            return record.task_id

    async def main() -> None:
        runtime = Runtime({"a": agent(call("work"), tools=[work])}, log=log)
        serving = asyncio.create_task(serve(runtime))
        await asyncio.sleep(2)
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()
        await nothing_left()
        assert [record.state for record in await log.list_runs()] == ["working"]

    with virtual_time() as time:
        time.run(main())
