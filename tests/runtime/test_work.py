"""A worker as a function: it works until it is cancelled, and starts what the clock wants."""

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
from support.queues import Bare


def answering() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 50), thoughts=False)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_worker_that_is_cancelled_gives_up_its_runs_and_the_next_one_goes_on() -> None:
    one, two = two_machines()
    with virtual_time() as time:

        async def program() -> None:
            queue = Bare()
            first = asyncio.create_task(
                work({"a": one.agent(call("work"), "Done.")}, queue, log=one.log, grace=4, concurrency=2)
            )
            async with Runtime({"a": two.agent()}, log=two.log, queue=queue) as web:
                record = await web.start("a", "Work")
                await asyncio.sleep(1)
                await ended(first)
                assert (await web.get_record(record.task_id)).state == "working"
                second = asyncio.create_task(
                    work({"a": two.agent(call("work"), "Done.")}, queue, log=two.log, concurrency=2)
                )
                await web.follow(record.task_id)
                assert (await web.get_record(record.task_id)).state == "completed"
                await ended(second)

        time.run(program())


async def test_several_workers_start_a_periodic_run_once_each_time() -> None:
    log, queue = MemoryEventLog(), Bare()
    each_second = [Periodic("tick", "* * * * * *", "a", "What time is it?", {"owner": "ann"})]
    workers = [
        asyncio.create_task(work({"a": answering()}, queue, log=log, periodic=each_second, concurrency=2))
        for _ in range(3)
    ]
    async with asyncio.timeout(10):
        while len(found := await log.list_runs(states=("completed",))) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.gather(*map(ended, workers))
    seconds = [record.created // 1000 for record in found]
    # The first one is made good at once, and may fall into the second of the next one.
    assert len(set(seconds[1:])) == len(seconds[1:])
    assert {record.owner for record in found} == {"ann"}


class Slow(Bare):
    """Takes its time to ring, the more so when it is told not to."""

    def __init__(self, *, deaf: bool = False) -> None:
        super().__init__()
        self._deaf = deaf
        self.begun, self.told, self.leaves = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waiting(self, version: str | None = None) -> int:
        # Who asks first goes on once somebody rings.
        await self.begun.wait()
        return 0

    async def enqueue(self, task_id: str, **options: Any) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.told.set()
            if self._deaf:
                self._deaf = False
                raise RuntimeError("the connection was broken") from None
            await self.leaves.wait()
            raise


def ticking(queue: Bare, *periodic: Periodic) -> asyncio.Task[None]:
    each_second = [*periodic, Periodic("tick", "* * * * * *", "a", "What time is it?")]
    # So that nothing else waits for the queue.
    return asyncio.create_task(
        work({"a": answering()}, queue, log=MemoryEventLog(), periodic=each_second, adopt_every=3600)
    )


async def test_a_worker_waits_until_its_periodic_starts_have_ended() -> None:
    queue = Slow()
    worker = ticking(queue, Periodic("wrong", "* * * * * *", "nobody", "Who is there?"))
    await queue.told.wait()
    await asyncio.wait([worker], timeout=0.5)
    assert not worker.done()
    queue.leaves.set()
    with pytest.raises(ConfigurationError, match="no agent 'nobody'"):
        await worker


async def test_a_periodic_start_that_does_not_listen_at_first_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its name, which a function of the package has, too.
    monkeypatch.setattr(import_module("rxloop.runtime.worker"), "_STOPS_IN", 0.1)
    queue = Slow(deaf=True)
    worker = ticking(queue, Periodic("first", "* * * * * *", "a", "What time is it?"))
    await queue.begun.wait()
    queue.leaves.set()
    await ended(worker)
    assert queue.told.is_set()
