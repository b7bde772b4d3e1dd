"""Concurrency limits and unavailable agents."""

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


async def test_runtime_executes_at_most_concurrency_runs_at_once(log: MemoryEventLog) -> None:
    running = peak = 0

    @tool
    async def busy() -> str:
        """Busy."""
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return "x"

    model = ScriptedModel(*[call("busy")] * 8, *["ok"] * 8)
    async with Runtime({"a": Agent(model, tools=[busy], thoughts=False)}, log=log, concurrency=2) as runtime:
        records = [await runtime.start("a", "Hi") for _ in range(8)]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
    assert peak <= 2


def test_run_of_an_unknown_agent_is_logged_once(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        run = agent(call("work"), tools=[work], log=log).run("Hi")
        async for event in run:
            if event.kind == "tool-start":
                break
        await run.release()
        async with Runtime({"a": agent("x")}, log=log):
            await asyncio.sleep(59)
            assert "needs agent" not in caplog.text
            await asyncio.sleep(300)
        assert caplog.text.count("needs agent 'agent'") == 1

    with virtual_time() as time:
        time.run(main())


def test_run_is_retried_when_its_deps_cannot_be_loaded(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    tries: list[float] = []

    def load_deps(record: RunRecord) -> str:
        tries.append(time.now)
        if len(tries) < 4:
            raise OSError("the database is away")
        return "deps"

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=load_deps) as runtime:
            await runtime.follow((await runtime.start("a", "Hi")).task_id)

    with virtual_time() as time:
        time.run(main())
    assert tries == [0, 1, 3, 7]
    assert "the database is away" in caplog.text


def test_hanging_deps_do_not_occupy_a_slot_forever(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    async def load_deps(record: RunRecord) -> str:
        if record.owner == "slow":
            await asyncio.Event().wait()
        return "deps"

    async def main() -> None:
        async with Runtime(
            {"a": agent("x", deps_type=str)}, log=log, deps=load_deps, concurrency=1, grace=0
        ) as runtime:
            await runtime.start("a", "Hi", owner="slow")
            await runtime.follow((await runtime.start("a", "Hi", owner="quick")).task_id)

    with virtual_time() as time:
        time.run(main())
        assert time.now == 60
    assert "took longer than 60 s" in caplog.text


async def wait_for_question(runtime: Runtime, task_id: str) -> str:
    """Wait for a question and return its input id."""
    async for event in runtime.follow(task_id):
        if event.kind == "input-required":
            return event.input_id  # pyright: ignore[reportAttributeAccessIssue]
    raise AssertionError("the run ended without a question")


def test_run_that_waits_for_an_earlier_run_occupies_no_slot(log: MemoryEventLog) -> None:
    agents = {
        "asks": agent(call("pay", amount=5), "Paid.", tools=[pay]),
        "slow": agent(call("work"), "Done.", tools=[work]),
        "quick": agent("Hello."),
    }

    async def main() -> None:
        async with asyncio.timeout(600), Runtime(agents, log=log, concurrency=1) as runtime:
            asks = await runtime.start("asks", "Pay", context_id="c")
            input_id = await wait_for_question(runtime, asks.task_id)
            slow = await runtime.start("slow", "Work")
            await asyncio.sleep(1)
            quick = await runtime.start("quick", "Hi", context_id="c")
            await runtime.answer(asks.task_id, {input_id: True})  # after `quick` in the queue for a slot
            for record in (slow, asks, quick):
                await runtime.follow(record.task_id)
                assert (await runtime.get_record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())


def test_scans_for_orphaned_runs_continue_after_a_log_failure() -> None:
    class FailingLog(MemoryEventLog):
        calls = 0

        async def list_orphaned(self, **submitted: Any) -> Sequence[RunRecord]:
            self.calls += 1
            if self.calls > 1 and time.now < 60:
                raise OSError("away")
            return await super().list_orphaned(**submitted)

    log = FailingLog()

    async def main() -> None:
        async with Runtime({"a": agent("x")}, log=log) as runtime:
            record = await agent("y").with_log(log).with_name("a").submit("Hi")
            await asyncio.sleep(100)
            assert (await runtime.get_record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())
