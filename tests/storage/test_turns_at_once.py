"""What a run costs a SQLite log beside its events: no turn of the thread, and no look into mail that is not there."""

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


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "runs.db", lease=1_000)
    await Agent(ScriptedModel("Hi."), log=log).run("Hi")
    yield log
    await log.aclose()


def nothing() -> None:
    pass


def holders(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as file:
        return [context_id for (context_id,) in file.execute("SELECT context_id FROM turns")]


async def test_a_turn_is_taken_and_given_back_without_the_thread(
    log: SqliteEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError("the thread was asked")

    monkeypatch.setattr(worker.Worker, "submit", asked)
    assert await log.acquire_lease("c", "run", nothing)
    assert holders(log.path) == ["c"]
    assert await log.acquire_lease("d", "other", nothing)
    await log.release_lease("c", "run")
    assert holders(log.path) == ["d"]
    await log.release_lease("d", "other")
    assert holders(log.path) == []


async def test_while_another_program_writes_a_turn_is_waited_for_and_none_is_left_behind(log: SqliteEventLog) -> None:
    free = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(log.path, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            held.set()
            assert free.wait(10)
            file.execute("COMMIT")

    for act in (lambda: log.acquire_lease("c", "run", nothing), lambda: log.release_lease("c", "run")):
        free.clear()
        held.clear()
        holding = asyncio.ensure_future(asyncio.to_thread(hold))
        assert await asyncio.to_thread(held.wait, 10)
        acting = asyncio.ensure_future(act())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not acting.done()
        free.set()
        assert await acting in (True, None)
        await holding
    assert holders(log.path) == []
    other = SqliteEventLog(log.path)
    assert await other.acquire_lease("c", "other", nothing)
    await other.aclose()


async def test_a_run_without_mail_does_not_read_any(tmp_path: Path) -> None:
    read: list[str] = []
    first = asyncio.Event()

    class Counting(SqliteEventLog):
        async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
            read.append(task_id)
            first.set()
            return await super().read_commands(task_id, after=after)

    async def slow(_: Any) -> str:
        """The first one until somebody has looked for mail, the others for three looks."""
        await first.wait()
        await asyncio.sleep(0.06)
        return "Hi."

    log = Counting(tmp_path / "runs.db")
    model = ScriptedModel(*[lambda request: "Hi."] * 5)
    agent = Agent(model, log=log, instructions=slow)
    await agent.run("Hi")
    read.clear()
    for _ in range(3):
        await agent.run("Hi")
    assert read == []
    await log.aclose()


async def test_a_subclass_with_an_append_of_its_own_sees_every_batch(tmp_path: Path) -> None:
    seen: list[str] = []

    async def told(self: Any, task_id: str, events: Sequence[Event], **options: Any) -> None:
        seen.extend(event.kind for event in events)
        above: Any = super(type(self), self)
        await above.append(task_id, events, **options)

    for base, arguments in ((MemoryEventLog, ()), (SqliteEventLog, (tmp_path / "mirrored.db",))):
        seen.clear()
        log: Any = type("Mirrored", (base,), {"append": told})(*arguments)
        result = await Agent(ScriptedModel("Hi."), log=log).run("Hi")
        assert seen == [event.kind for event in await log.read(result.task_id)]
        if isinstance(log, SqliteEventLog):
            await log.aclose()


def test_a_subclass_with_append_alone_does_not_inherit_append_now() -> None:
    class Both(MemoryEventLog):
        async def append(self, *arguments: Any, **options: Any) -> None: ...
        def append_now(self, *arguments: Any, **options: Any) -> bool: ...

    class Below(Both): ...

    class Own(Below):
        async def append(self, *arguments: Any, **options: Any) -> None: ...

    class Mirrored:
        """A base class that is not a log."""

        async def append(self, *arguments: Any, **options: Any) -> None: ...

    class Mixed(Mirrored, Both): ...  # type: ignore[misc]

    default = EventLog.append_now
    classes = (MemoryEventLog, Both, Below, Own, Mixed)
    assert [cls.append_now is default for cls in classes] == [True, False, False, True, True]


async def test_a_log_object_with_an_append_of_its_own_sees_every_batch(tmp_path: Path) -> None:
    log: Any = SqliteEventLog(tmp_path / "runs.db")
    append, seen = log.append, list[str]()

    async def mirrored(task_id: str, events: Sequence[Event], **options: Any) -> None:
        seen.extend(event.kind for event in events)
        await append(task_id, events, **options)

    log.append = mirrored
    result = await Agent(ScriptedModel("Hi."), log=log).run("Hi")
    assert seen == [event.kind for event in await log.read(result.task_id)]
    await log.aclose()
