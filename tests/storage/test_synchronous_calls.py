"""Synchronous operations of SQLite logs."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Event, MemoryEventLog, SqliteEventLog
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.commands import Command
from rxloop.storage.sqlite import worker
from rxloop.testing import ScriptedModel


async def wait_until_idle(thread: worker.Worker) -> None:
    """Wait until a thread has released its connection, which happens after it has reported a result."""
    shared = thread._shared
    while shared is not None and (shared.unfinished or shared.lock.locked()):  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "runs.db", lease=1_000)
    await Agent(ScriptedModel("Hi."), log=log).run("Hi")
    await wait_until_idle(log._writer._worker)
    # The reader opens its connection in the background, which may lock the file.
    await wait_until_idle(log._reader)
    yield log
    await log.aclose()


def ignore() -> None:
    pass


def leased_contexts(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as file:
        return [context_id for (context_id,) in file.execute("SELECT context_id FROM leases")]


async def test_lease_is_acquired_and_released_without_the_thread(
    log: SqliteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("the thread was used")

    monkeypatch.setattr(worker.Worker, "submit", fail)
    assert await log.acquire_lease("c", "run", ignore)
    assert leased_contexts(log.path) == ["c"]
    assert await log.acquire_lease("d", "other", ignore)
    await log.release_lease("c", "run")
    assert leased_contexts(log.path) == ["d"]
    await log.release_lease("d", "other")
    assert leased_contexts(log.path) == []


async def test_acquisition_waits_for_another_writer_and_leaves_no_lease_when_cancelled(log: SqliteEventLog) -> None:
    free = threading.Event()
    locked = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(log.path, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            locked.set()
            assert free.wait(10)
            file.execute("COMMIT")

    for act in (lambda: log.acquire_lease("c", "run", ignore), lambda: log.release_lease("c", "run")):
        free.clear()
        locked.clear()
        holding = asyncio.ensure_future(asyncio.to_thread(hold))
        assert await asyncio.to_thread(locked.wait, 10)
        acting = asyncio.ensure_future(act())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not acting.done()
        free.set()
        assert await acting in (True, None)
        await holding
    assert leased_contexts(log.path) == []
    other = SqliteEventLog(log.path)
    assert await other.acquire_lease("c", "other", ignore)
    await other.aclose()


async def test_run_without_commands_reads_none(tmp_path: Path) -> None:
    reads: list[str] = []
    first = asyncio.Event()

    class CountingLog(SqliteEventLog):
        async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
            reads.append(task_id)
            first.set()
            return await super().read_commands(task_id, after=after)

    async def slow(_: Any) -> str:
        """Wait for the first poll of commands, or for the duration of three polls."""
        await first.wait()
        await asyncio.sleep(0.06)
        return "Hi."

    log = CountingLog(tmp_path / "runs.db")
    model = ScriptedModel(*[lambda request: "Hi."] * 5)
    agent = Agent(model, log=log, instructions=slow)
    await agent.run("Hi")
    reads.clear()
    for _ in range(3):
        await agent.run("Hi")
    assert reads == []
    await log.aclose()


async def test_subclass_that_overrides_append_gets_every_batch(tmp_path: Path) -> None:
    seen: list[str] = []

    async def append(self: Any, task_id: str, events: Sequence[Event], **options: Any) -> None:
        seen.extend(event.kind for event in events)
        above: Any = super(type(self), self)
        await above.append(task_id, events, **options)

    for base, arguments in ((MemoryEventLog, ()), (SqliteEventLog, (tmp_path / "mirrored.db",))):
        seen.clear()
        log: Any = type("Mirrored", (base,), {"append": append})(*arguments)
        result = await Agent(ScriptedModel("Hi."), log=log).run("Hi")
        assert seen == [event.kind for event in await log.read(result.task_id)]
        if isinstance(log, SqliteEventLog):
            await log.aclose()


def test_subclass_that_overrides_append_does_not_inherit_append_now() -> None:
    class Both(MemoryEventLog):
        async def append(self, *arguments: Any, **options: Any) -> None: ...
        def append_now(self, *arguments: Any, **options: Any) -> bool: ...

    class Inherited(Both): ...

    class Overridden(Inherited):
        async def append(self, *arguments: Any, **options: Any) -> None: ...

    class Mirrored:
        async def append(self, *arguments: Any, **options: Any) -> None: ...

    class Mixed(Mirrored, Both): ...  # type: ignore[misc]

    default = EventLog.append_now
    classes = (MemoryEventLog, Both, Inherited, Overridden, Mixed)
    assert [cls.append_now is default for cls in classes] == [True, False, False, True, True]


async def test_log_object_with_a_replaced_append_gets_every_batch(tmp_path: Path) -> None:
    log: Any = SqliteEventLog(tmp_path / "runs.db")
    append, seen = log.append, list[str]()

    async def mirrored(task_id: str, events: Sequence[Event], **options: Any) -> None:
        seen.extend(event.kind for event in events)
        await append(task_id, events, **options)

    log.append = mirrored
    result = await Agent(ScriptedModel("Hi."), log=log).run("Hi")
    assert seen == [event.kind for event in await log.read(result.task_id)]
    await log.aclose()
