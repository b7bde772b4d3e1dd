"""Contract of the built-in event logs, and properties beyond the contract."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import EventLogError, UnknownRun
from rxloop.protocol.commands import CancelCommand
from rxloop.protocol.events import ContentDeltaEvent, Event, State
from rxloop.protocol.messages import Message
from rxloop.storage import MemoryEventLog, PostgresEventLog, SqliteEventLog
from rxloop.testing import event_log_contract
from rxloop.testing.event_log_contract.toolkit import Follower, note, start_events, status, task
from support.postgres.server import clear_log

BuiltIn = MemoryEventLog | SqliteEventLog | PostgresEventLog


class MakeLog(Protocol):
    def __call__(self, *, keep_deltas: bool = False) -> BuiltIn: ...


POSTGRES = pytest.param("postgres", marks=pytest.mark.service("postgres"))


@pytest.fixture(params=["memory", "sqlite", POSTGRES], scope="session")
def make_log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeLog:
    """Factory that returns a new, empty log at each call."""

    def sqlite(*, keep_deltas: bool = False) -> SqliteEventLog:
        return SqliteEventLog(tmp_path_factory.mktemp("log") / "runs.db", keep_deltas=keep_deltas)

    def postgres(*, keep_deltas: bool = False) -> PostgresEventLog:
        address = clear_log(request.getfixturevalue("postgres"))
        return PostgresEventLog(address, deltas="keep" if keep_deltas else "live")

    return {"memory": MemoryEventLog, "sqlite": sqlite, "postgres": postgres}[request.param]


@pytest.fixture
async def log(make_log: MakeLog) -> AsyncIterator[BuiltIn]:
    log = make_log()
    yield log
    await log.aclose()


# L10, L91, L132, L138
@pytest.mark.parametrize("check", event_log_contract.CHECKS, ids=lambda check: check.__name__)
async def test_log_passes_the_contract(make_log: MakeLog, check: event_log_contract.Check) -> None:
    await check(make_log)


@pytest.mark.parametrize("check", event_log_contract.SHARED_CHECKS, ids=lambda check: check.__name__)
async def test_two_logs_of_one_file_pass_the_contract(tmp_path: Path, check: event_log_contract.SharedCheck) -> None:
    path = tmp_path / "runs.db"
    await check(lambda: (SqliteEventLog(path, keep_deltas=True), SqliteEventLog(path, keep_deltas=True)))


@pytest.mark.service("postgres")
@pytest.mark.parametrize("check", event_log_contract.SHARED_CHECKS, ids=lambda check: check.__name__)
async def test_two_logs_of_one_database_pass_the_contract(postgres: str, check: event_log_contract.SharedCheck) -> None:
    await check(lambda: (PostgresEventLog(clear_log(postgres)), PostgresEventLog(postgres)))


def test_log_serves_one_event_loop_after_another(make_log: MakeLog) -> None:
    log = make_log()

    async def run_first_loop() -> None:
        await log.append("run", start_events(), expected_seq=0)
        await Follower(log).wait_for_events(1, 2)  # the follower still waits when the loop is closed

    async def run_second_loop() -> list[int]:
        follower = Follower(log)
        await follower.wait_for_events(1, 2)
        await log.append("run", [status(3, "completed", final=True)], expected_seq=2)
        await follower.task
        await log.aclose()
        return follower.received

    asyncio.run(run_first_loop())

    assert asyncio.run(run_second_loop()) == [1, 2, 3]


@given(batches=st.lists(st.integers(1, 4), max_size=8), after_seq=st.integers(0, 12), turns=st.integers(0, 3))
def test_follower_gets_the_events_of_a_later_read_for_any_batch_sizes(
    make_log: MakeLog, batches: list[int], after_seq: int, turns: int
) -> None:
    async def scenario(log: BuiltIn) -> tuple[list[int], list[int]]:
        await log.append("run", start_events(), expected_seq=0)
        follower = Follower(log, after_seq=after_seq)
        seq = 2
        for size in batches:
            await log.append("run", [note(seq + 1 + at) for at in range(size)], expected_seq=seq)
            seq += size
            for _ in range(turns):
                await asyncio.sleep(0)
        await log.append("run", [status(seq + 1, "completed", final=True)], expected_seq=seq)
        await follower.task
        read = await log.read("run", after_seq=after_seq)
        await log.aclose()
        return follower.received, [event.seq for event in read]

    seen, read = asyncio.run(scenario(make_log()))

    assert seen == read


def record_threads(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, threads: set[int]) -> None:
    """Record the threads that call a function."""
    function = getattr(owner, name)

    def watched(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return function(*args)

    monkeypatch.setattr(owner, name, watched)


async def test_large_batch_is_checked_and_encoded_outside_of_the_event_loop(
    log: BuiltIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()
    record_threads(monkeypatch, import_module(type(log).__module__), "check_batch", threads)
    record_threads(monkeypatch, Event, "to_json", threads)
    await log.append("run", [*start_events(), *map(note, range(3, 1_003))], expected_seq=0)
    assert threads
    assert threading.get_ident() not in threads
    assert (await log.get_record("run")).seq == 1_002
    with pytest.raises(EventLogError, match="must be 1003, got 1004"):
        await log.append("run", [*map(note, range(1_004, 2_004))], expected_seq=1_002)


async def test_first_event_with_many_messages_is_encoded_outside_of_the_event_loop(
    log: BuiltIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()
    record_threads(monkeypatch, Event, "to_json", threads)
    first = task().model_copy(update={"messages": [Message.user("Hi")] * 1_000})
    await log.append("run", [first], expected_seq=0)
    assert bool(threads) is not isinstance(log, MemoryEventLog)
    assert threading.get_ident() not in threads


async def append_finished(log: BuiltIn, task_id: str, state: State, *, at: int = 0, **fields: Any) -> None:
    events = [
        task(task_id=task_id, timestamp=at),
        ContentDeltaEvent(seq=1, sub=1, delta="a", task_id=task_id),
        status(2, state, final=True, timestamp=at, **fields),
    ]
    await log.append(task_id, events if log.keeps_deltas else [events[0], events[2]], expected_seq=0)


async def test_fork_is_created_when_its_own_events_start(log: BuiltIn) -> None:
    copied = [task(task_id="fork", timestamp=1_000, fork_of="original", fork_seq=2), note(2, timestamp=2_000)]
    own = status(3, "working", attempt=2, resumed=True, timestamp=9_000)
    await log.append("fork", [*copied, own], expected_seq=0)
    await log.append("old", [task(task_id="old", context_id="c", timestamp=1_000)], expected_seq=0)

    [record] = await log.list_runs(since=5_000)

    assert (record.task_id, record.created) == ("fork", 9_000)
    assert [each.task_id for each in await log.list_runs(until=5_000)] == ["old"]


async def test_run_cannot_start_with_a_transient_event(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    delta = ContentDeltaEvent(task_id="run", seq=0, sub=1, delta="x")
    with pytest.raises(EventLogError, match="the first event must be durable"):
        await asyncio.wait_for(log.append("run", [delta], expected_seq=0), 5)
    with pytest.raises(UnknownRun):
        await log.get_record("run")
    await log.aclose()


async def test_finished_run_can_be_deleted(log: BuiltIn) -> None:
    await append_finished(log, "old", "completed")
    await append_finished(log, "new", "completed")

    await log.delete("old")

    assert [record.task_id for record in await log.list_runs()] == ["new"]
    with pytest.raises(UnknownRun, match="old"):
        await log.read("old")
    with pytest.raises(UnknownRun, match="old"):
        await log.delete("old")


async def test_commands_are_deleted_with_their_run(log: BuiltIn) -> None:
    await append_finished(log, "old", "completed")
    number = await log.send_command("old", CancelCommand())
    await log.delete("old")
    with pytest.raises(UnknownRun, match="old"):
        await log.read_commands("old")

    await append_finished(log, "old", "completed")
    assert await log.read_commands("old") == []
    assert await log.send_command("old", CancelCommand()) > number


async def test_deleted_runs_are_not_listed_in_their_conversation(log: BuiltIn) -> None:
    for at, task_id in enumerate(["deleted", "trimmed", "new"]):
        events = [
            task(task_id=task_id, context_id="c", timestamp=at),
            status(2, "completed", final=True, timestamp=round(time.time() * 1000) if task_id == "new" else at),
        ]
        await log.append(task_id, events, expected_seq=0)

    await log.delete("deleted")
    assert [record.task_id for record in await log.list_runs(context_id="c")] == ["trimmed", "new"]
    await log.trim(1_800)
    assert [record.task_id for record in await log.list_runs(context_id="c")] == ["new"]
    await log.delete("new")
    assert await log.list_runs(context_id="c") == []


@pytest.mark.parametrize("state", ["canceled", "input-required", "auth-required"])
async def test_unfinished_run_is_never_deleted_or_trimmed(log: BuiltIn, state: State) -> None:  # L94
    await append_finished(log, "waits", state)
    await log.append("works", start_events(task_id="works"), expected_seq=0)

    with pytest.raises(EventLogError, match=f"waits is {state}"):
        await log.delete("waits")
    with pytest.raises(EventLogError, match="works is working"):
        await log.delete("works")

    assert await log.trim(0, states=("completed", "failed", state, "working")) == []
    assert len(await log.list_runs()) == 2


async def test_trim_selects_runs_by_age_and_state(log: BuiltIn) -> None:  # L94
    now = round(time.time() * 1000)
    await append_finished(log, "old", "completed", at=now - 3_600_000)
    await append_finished(log, "failed", "failed", at=now - 3_600_000)
    await append_finished(log, "new", "completed", at=now - 60_000)

    assert await log.trim(1_800, states=("completed",)) == ["old"]
    assert [record.task_id for record in await log.list_runs()] == ["failed", "new"]
    assert await log.trim(1_800) == ["failed"]
    assert await log.trim(1_800) == []


async def test_trim_can_remove_only_transient_events(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    await append_finished(log, "run", "completed")
    assert len(await log.read("run", deltas=True)) == 3

    assert await log.trim(0, deltas_only=True) == ["run"]

    assert len(await log.read("run", deltas=True)) == 2
    assert await log.trim(0, deltas_only=True) == []
    await log.aclose()
