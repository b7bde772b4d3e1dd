"""Worker function."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.errors import ConfigurationError
from rxloop.runtime import Periodic, work
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import two_machines
from support.queues import MemoryQueue


def answering_agent() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 50), thoughts=False)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_canceled_worker_releases_its_runs_for_the_next_worker() -> None:
    first_machine, second_machine = two_machines()
    with virtual_time() as time:

        async def program() -> None:
            queue = MemoryQueue()
            first = asyncio.create_task(
                work(
                    {"a": first_machine.agent(call("work"), "Done.")},
                    queue,
                    log=first_machine.log,
                    grace=4,
                    concurrency=2,
                )
            )
            async with Runtime({"a": second_machine.agent()}, log=second_machine.log, queue=queue) as server:
                record = await server.start("a", "Work")
                await asyncio.sleep(1)
                await cancel_and_wait(first)
                assert (await server.get_record(record.task_id)).state == "working"
                second = asyncio.create_task(
                    work(
                        {"a": second_machine.agent(call("work"), "Done.")}, queue, log=second_machine.log, concurrency=2
                    )
                )
                await server.follow(record.task_id)
                assert (await server.get_record(record.task_id)).state == "completed"
                await cancel_and_wait(second)

        time.run(program())


async def test_periodic_run_is_started_once_per_time_by_several_workers() -> None:
    log, queue = MemoryEventLog(), MemoryQueue()
    schedule = [Periodic("tick", "* * * * * *", "a", "What time is it?", {"owner": "ann"})]
    workers = [
        asyncio.create_task(work({"a": answering_agent()}, queue, log=log, periodic=schedule, concurrency=2))
        for _ in range(3)
    ]
    async with asyncio.timeout(10):
        while len(records := await log.list_runs(states=("completed",))) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.gather(*map(cancel_and_wait, workers))
    seconds = [record.created // 1000 for record in records]
    # Ignore the first run, which makes up for a missed start.
    assert len(set(seconds[1:])) == len(seconds[1:])
    assert {record.owner for record in records} == {"ann"}


class HangingQueue(MemoryQueue):
    """Queue whose `enqueue` hangs and delays or ignores its cancellation."""

    def __init__(self, *, ignores_first_cancel: bool = False) -> None:
        super().__init__()
        self._ignores_first_cancel = ignores_first_cancel
        self.started, self.was_canceled, self.release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waiting(self, version: str | None = None) -> int:
        # Block the first caller until something is enqueued.
        await self.started.wait()
        return 0

    async def enqueue(self, task_id: str, **options: Any) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_canceled.set()
            if self._ignores_first_cancel:
                self._ignores_first_cancel = False
                raise RuntimeError("the connection was broken") from None
            await self.release.wait()
            raise


def start_periodic_worker(queue: MemoryQueue, *periodic: Periodic) -> asyncio.Task[None]:
    schedule = [*periodic, Periodic("tick", "* * * * * *", "a", "What time is it?")]
    # No scan may wait for the queue.
    return asyncio.create_task(
        work({"a": answering_agent()}, queue, log=MemoryEventLog(), periodic=schedule, adopt_every=3600)
    )


async def test_worker_waits_until_its_periodic_starts_have_ended() -> None:
    queue = HangingQueue()
    worker = start_periodic_worker(queue, Periodic("wrong", "* * * * * *", "nobody", "Who is there?"))
    await queue.was_canceled.wait()
    await asyncio.wait([worker], timeout=0.5)
    assert not worker.done()
    queue.release.set()
    with pytest.raises(ConfigurationError, match="unknown agent 'nobody'"):
        await worker


async def test_periodic_start_that_ignores_its_first_cancellation_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    # Import by name, because a function shadows this module.
    monkeypatch.setattr(import_module("rxloop.runtime.worker"), "_CANCEL_INTERVAL", 0.1)
    queue = HangingQueue(ignores_first_cancel=True)
    worker = start_periodic_worker(queue, Periodic("first", "* * * * * *", "a", "What time is it?"))
    await queue.started.wait()
    queue.release.set()
    await cancel_and_wait(worker)
    assert queue.was_canceled.is_set()
