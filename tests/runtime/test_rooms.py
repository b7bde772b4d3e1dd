"""How many runs go on at once in a runtime, and runs that it cannot carry out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    MemoryEventLog,
    RunRecord,
    Runtime,
    tool,
)
from rxloop.testing import ScriptedModel, call, virtual_time
from support.slow_agent import agent, pay, work


async def test_no_more_than_so_many_runs_go_on_at_once(log: MemoryEventLog) -> None:
    at_once = most = 0

    @tool
    async def busy() -> str:
        """Busy."""
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "x"

    model = ScriptedModel(*[call("busy")] * 8, *["ok"] * 8)
    async with Runtime({"a": Agent(model, tools=[busy], thoughts=False)}, log=log, concurrency=2) as runtime:
        records = [await runtime.start("a", "Hi") for _ in range(8)]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
    assert most <= 2


def test_a_run_of_an_agent_that_is_not_here_is_told_of_once(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        run = agent(call("work"), tools=[work], log=log).run("Hi")
        async for event in run:
            if event.kind == "tool-start":
                break
        await run.release()
        async with Runtime({"a": agent("x")}, log=log):
            await asyncio.sleep(59)
            assert "no agent" not in caplog.text
            await asyncio.sleep(300)
        assert caplog.text.count("no agent 'agent'") == 1

    with virtual_time() as time:
        time.run(main())


def test_a_run_whose_deps_cannot_be_made_is_tried_again_and_told(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def deps_of(record: RunRecord) -> str:
        tries.append(time.now)
        if len(tries) < 4:
            raise OSError("the database is away")
        return "deps"

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=deps_of) as runtime:
            await runtime.follow((await runtime.start("a", "Hi")).task_id)

    with virtual_time() as time:
        time.run(main())
    assert tries == [0, 1, 3, 7]
    assert "the database is away" in caplog.text


def test_deps_that_never_come_do_not_hold_the_room_of_a_run_for_ever(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def deps_of(record: RunRecord) -> str:
        if record.owner == "slow":
            await asyncio.Event().wait()
        return "deps"

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=deps_of, concurrency=1, grace=0) as runtime:
            await runtime.start("a", "Hi", owner="slow")
            await runtime.follow((await runtime.start("a", "Hi", owner="quick")).task_id)

    with virtual_time() as time:
        time.run(main())
        assert time.now == 60
    assert "were not there after 60 s" in caplog.text


async def question_of(runtime: Runtime, task_id: str) -> str:
    """Wait until a run asks."""
    async for event in runtime.follow(task_id):
        if event.kind == "input-required":
            return event.input_id  # pyright: ignore[reportAttributeAccessIssue]
    raise AssertionError("it never asked")


def test_a_run_that_waits_for_an_earlier_one_takes_no_room_from_it(log: MemoryEventLog) -> None:
    agents = {
        "asks": agent(call("pay", amount=5), "Paid.", tools=[pay]),
        "slow": agent(call("work"), "Done.", tools=[work]),
        "quick": agent("Hello."),
    }

    async def main() -> None:
        async with asyncio.timeout(600), Runtime(agents, log=log, concurrency=1) as runtime:
            asks = await runtime.start("asks", "Pay", context_id="c")
            input_id = await question_of(runtime, asks.task_id)
            slow = await runtime.start("slow", "Work")
            await asyncio.sleep(1)
            quick = await runtime.start("quick", "Hi", context_id="c")
            await runtime.answer(asks.task_id, {input_id: True})  # behind `quick` in the queue for room
            for record in (slow, asks, quick):
                await runtime.follow(record.task_id)
                assert (await runtime.get_record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())


def test_runs_are_looked_for_again_though_the_log_fails_once() -> None:
    class Away(MemoryEventLog):
        asked = 0

        async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
            self.asked += 1
            if self.asked > 1 and time.now < 60:
                raise OSError("away")
            return await super().list_orphaned(**submitted)

    log = Away()

    async def main() -> None:
        async with Runtime({"a": agent("x")}, log=log) as runtime:
            record = await agent("y").with_log(log).with_name("a").submit("Hi")
            await asyncio.sleep(100)
            assert (await runtime.get_record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())
