"""Canceled and failed runs that a runtime resumes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunRecord, Runtime, SqliteEventLog, tool
from rxloop.errors import ContextBusy, RateLimited, RunOver
from rxloop.testing import ScriptedModel, call
from support.queues import MemoryQueue

calls: list[str] = []


@tool
async def look(city: str) -> str:
    """Looks."""
    calls.append(city)
    return "18 C"


@tool
async def wait() -> None:
    """Never ends."""
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def make_runtime(log: Any, *turns: Any, **options: Any) -> Runtime:
    agent = Agent(ScriptedModel(*turns), tools=[look, wait], thoughts=False)
    return Runtime({"guide": agent}, log=log, **options)


async def wait_for_end(runtime: Runtime, task_id: str) -> RunRecord:
    await runtime.follow(task_id)
    return await runtime.get_record(task_id)


async def start_and_cancel(runtime: Runtime, **options: Any) -> RunRecord:
    record = await runtime.start("guide", "Go.", **options)
    async for event in runtime.follow(record.task_id):
        if event.kind == "tool-start" and event.name == "wait":
            break
    await runtime.cancel(record.task_id)
    canceled = await runtime.get_record(record.task_id)
    assert canceled.state == "canceled"
    return canceled


async def test_canceled_run_is_resumed_and_repeats_no_call() -> None:
    async with make_runtime(MemoryEventLog(), call("look", city="Oslo"), call("wait"), "Done.") as runtime:
        canceled = await start_and_cancel(runtime)
        resumed = await runtime.resume(canceled.task_id)
        ended = await wait_for_end(runtime, canceled.task_id)
    assert resumed.seq > canceled.seq
    assert (ended.state, calls) == ("completed", ["Oslo"])


async def test_run_that_failed_with_a_retryable_error_is_resumed() -> None:
    log = MemoryEventLog()
    async with make_runtime(log, call("look", city="Oslo"), RateLimited("busy"), "Done.") as runtime:
        record = await runtime.start("guide", "Go.")
        failed = await wait_for_end(runtime, record.task_id)
        await runtime.resume(record.task_id)
        ended = await wait_for_end(runtime, record.task_id)
    assert (failed.state, ended.state, calls) == ("failed", "completed", ["Oslo"])


async def test_resume_raises_if_the_run_is_over() -> None:
    log = MemoryEventLog()
    async with make_runtime(log, "Done.", ValueError("broken")) as runtime:
        for state in ("completed", "failed"):
            record = await runtime.start("guide", "Go.")
            ended = await wait_for_end(runtime, record.task_id)
            assert ended.state == state
            with pytest.raises(RunOver, match=f"is {state} and cannot be resumed"):
                await runtime.resume(record.task_id)
            assert await runtime.get_record(record.task_id) == ended


async def test_concurrent_resumes_start_one_attempt(tmp_path: Path) -> None:
    logs = [SqliteEventLog(tmp_path / "runs.db") for _ in range(2)]
    script = (call("wait"), "Done.", "Again.")
    async with make_runtime(logs[0], *script) as first, make_runtime(logs[1], "Done.", "Again.") as second:
        canceled = await start_and_cancel(first)
        runtimes = (first, second, first, second)
        records = await asyncio.gather(*(each.resume(canceled.task_id, after=canceled.cursor) for each in runtimes))
        ended = await wait_for_end(first, canceled.task_id)
        late = await first.resume(canceled.task_id, after=canceled.cursor)
        events = await logs[0].read(canceled.task_id)
    for log in logs:
        await log.aclose()
    assert all(record.seq > canceled.seq for record in records)
    assert (ended.state, late.seq) == ("completed", ended.seq)
    assert [event.kind for event in events].count("content-complete") == 2


async def test_delayed_resume_does_not_repeat_a_later_failure() -> None:
    log = MemoryEventLog()
    async with make_runtime(log, RateLimited("busy"), RateLimited("busy"), "Done.") as runtime:
        record = await runtime.start("guide", "Go.")
        first = await wait_for_end(runtime, record.task_id)
        await runtime.resume(record.task_id, after=first.cursor)
        second = await wait_for_end(runtime, record.task_id)
        late = await runtime.resume(record.task_id, after=first.cursor)
    assert (second.state, late) == ("failed", second)


async def test_active_run_is_not_changed() -> None:
    async with make_runtime(MemoryEventLog(), call("wait"), grace=0) as runtime:
        record = await runtime.start("guide", "Go.")
        async for event in runtime.follow(record.task_id):
            if event.kind == "tool-start":
                break
        active = await runtime.get_record(record.task_id)
        assert await runtime.resume(record.task_id) == active


async def test_resume_raises_if_another_run_of_the_conversation_is_active() -> None:
    async with make_runtime(MemoryEventLog(), call("wait"), call("wait"), grace=0) as runtime:
        canceled = await start_and_cancel(runtime, context_id="c")
        other = await runtime.start("guide", "Go.", context_id="c")
        async for event in runtime.follow(other.task_id):
            if event.kind == "tool-start":
                break
        with pytest.raises(ContextBusy):
            await runtime.resume(canceled.task_id)
        assert (await runtime.get_record(canceled.task_id)).state == "canceled"


async def test_server_with_a_queue_leaves_the_resumed_run_to_a_worker() -> None:
    log, queue = MemoryEventLog(), MemoryQueue()
    async with make_runtime(log, call("wait"), is_worker=True) as earlier:
        canceled = await start_and_cancel(earlier)
    async with make_runtime(log, queue=queue, adopt_every=0) as server:
        resumed = await server.resume(canceled.task_id)
        assert (resumed.state, server.is_executing(canceled.task_id)) == ("working", False)
        assert [each[0] for each in queue.enqueued] == [canceled.task_id]
        async with make_runtime(log, "Done.", queue=queue, is_worker=True, adopt_every=0):
            ended = await wait_for_end(server, canceled.task_id)
    assert ended.state == "completed"
