"""Long runs and conversations, which are read and written without blocking the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rxloop import Agent, EventLog, Limits, PostgresEventLog, SqliteEventLog
from rxloop.errors import UnknownRun
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, ToolCompleteEvent
from rxloop.protocol.messages import Message
from rxloop.recorded.replay import history
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.fold import fold_all
from rxloop.storage.postgres import reads, rows
from rxloop.storage.sqlite import writer
from rxloop.stream.hub import Hub
from rxloop.support.garbage import ignore_large_data, is_processing_large_data
from rxloop.support.threads import THREADS, compute
from rxloop.testing import ScriptedModel
from support.dropped_questions import shared_logs
from support.long_runs import count_turns
from support.run_checks import wait_until
from support.viewer_runs import store_long_run

LOGS = ["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))]
READS: dict[str, Callable[[EventLog], Awaitable[Any]]] = {
    "run": lambda log: log.read("long"),
    "snapshot": lambda log: log.snapshot("long"),
    "conversation": lambda log: log.read_conversation("talk", before="", version=1),
}
MAX_EVENTS = 500
"""Maximum number of events that are processed without running other tasks."""


@pytest.fixture
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[EventLog]:
    async with shared_logs(request.param, tmp_path, request) as make:
        yield make()


@pytest.mark.parametrize("log", LOGS, indirect=True)
@pytest.mark.parametrize(("steps", "is_long"), [(10, False), (240, True)])
@pytest.mark.parametrize("read", READS)
async def test_events_of_a_long_run_are_parsed_in_a_thread_without_full_garbage_collections(
    read: str,
    log: EventLog,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_long: bool,
) -> None:
    await store_long_run(log, steps)
    excluded, threads = list[bool](), list[threading.Thread]()
    parse: Any = Event.from_json

    def watch(cls: type[Event], data: bytes) -> Event:
        excluded.append(is_processing_large_data())
        threads.append(threading.current_thread())
        return parse(data)

    monkeypatch.setattr(Event, "from_json", classmethod(watch))
    await READS[read](log)
    assert len(excluded) == 5 * steps + 3
    assert set(excluded) == {is_long}
    if is_long:
        assert threading.current_thread() not in threads
    assert not is_processing_large_data()


@pytest.mark.service("postgres")
@pytest.mark.parametrize("log", ["postgres"], indirect=True)
@pytest.mark.parametrize("read", READS)
async def test_other_tasks_run_while_the_rows_of_a_long_run_are_created(
    read: str, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_long_run(log, steps=300)
    async with count_turns() as turns:

        def watch(name: str) -> None:
            fetch = getattr(psycopg.AsyncCursor[Any], name)

            async def watched(cursor: Any, *arguments: Any) -> list[Any]:
                found = await fetch(cursor, *arguments)
                turns.count_item(len(found))
                return found

            monkeypatch.setattr(psycopg.AsyncCursor, name, watched)

        watch("fetchall")
        watch("fetchmany")
        await READS[read](log)
    assert turns.items.total() >= 1_503
    # A few rows describe the run.
    assert max(turns.items.values()) <= MAX_EVENTS + 10


@pytest.mark.service("postgres")
@pytest.mark.parametrize("log", ["postgres"], indirect=True)
async def test_pipeline_receives_a_limited_number_of_rows(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    await store_long_run(log, steps=300)
    complete = await log.snapshot("long")
    received = list[int]()
    leave: Any = psycopg.AsyncPipeline.__aexit__
    cursors = list[psycopg.AsyncCursor[Any]]()
    execute: Any = psycopg.AsyncCursor.execute

    async def watch_execute(cursor: Any, *arguments: Any, **options: Any) -> Any:
        cursors.append(cursor)
        return await execute(cursor, *arguments, **options)

    async def watch_exit(pipeline: Any, *arguments: Any) -> None:
        received.extend(cursor.rowcount for cursor in cursors)
        await leave(pipeline, *arguments)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", watch_execute)
    monkeypatch.setattr(psycopg.AsyncPipeline, "__aexit__", watch_exit)
    assert (await log.snapshot("long")).events == complete.events
    assert [event.seq for event in complete.events] == [*range(1, 1_504)]
    assert max(received) == MAX_EVENTS


@pytest.mark.parametrize("log", LOGS, indirect=True)
async def test_large_batch_is_prepared_in_a_thread_without_full_garbage_collections(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.list_runs()
    prepared, threads = list[bool](), list[threading.Thread]()
    module, name = (rows, "_make_values") if isinstance(log, PostgresEventLog) else (writer, "_encode")
    prepare = getattr(module, name)

    def watch(*arguments: Any) -> Any:
        prepared.append(is_processing_large_data())
        threads.append(threading.current_thread())
        return prepare(*arguments)

    monkeypatch.setattr(module, name, watch)
    await store_long_run(log, steps=190)
    assert prepared == [True]
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("log", LOGS, indirect=True)
@pytest.mark.parametrize("read", ["snapshot", "history"])
async def test_events_of_a_long_run_are_freed_in_a_thread(
    read: str, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_long_run(log, steps=300)
    async with count_turns() as turns:
        parse: Any = Event.from_json

        def watch(cls: type[Event], data: bytes) -> Event:
            event = parse(data)
            vars(event)["_parsed"] = True
            return event

        def count(event: Event) -> None:
            # The stored events are freed as well.
            if "_parsed" in vars(event):
                turns.count_item()

        monkeypatch.setattr(Event, "from_json", classmethod(watch))
        monkeypatch.setattr(LLMCallEvent, "__del__", count, raising=False)
        if read == "snapshot":
            snapshot = await log.snapshot("long")
            assert len(snapshot.events) == 1_503
            del snapshot
        else:
            assert len(await history(log, "talk")) == 601
        await wait_until(lambda: turns.items.total() + turns.items_in_threads == 300)
    assert not turns.items


def _publish(events: Sequence[Event]) -> Hub:
    hub = Hub()
    for event in events:
        hub.publish(event)
    return hub


HOLDERS: dict[str, Callable[[Sequence[Event]], object]] = {
    "hub": _publish,
    "earlier attempts": EarlierAttempts,
    "history": lambda events: fold_all(events).messages,
}


@pytest.mark.parametrize("holder", HOLDERS)
async def test_state_of_a_long_run_is_freed_in_a_thread(
    holder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = SqliteEventLog(tmp_path / "log")
    await store_long_run(log, steps=300)
    value = HOLDERS[holder](await log.read("long"))
    await log.aclose()
    # The thread may still free the events that were read.
    await compute(lambda: None)
    async with count_turns() as turns:
        for each in (Message, ContentCompleteEvent, ToolCompleteEvent):
            monkeypatch.setattr(each, "__del__", lambda event: turns.count_item(), raising=False)
        del value
        await wait_until(lambda: turns.items.total() + turns.items_in_threads >= 600)
    assert turns.items_in_threads >= 600
    assert turns.items.total() < 20


async def test_ended_fork_of_a_long_run_is_freed_in_a_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, model = SqliteEventLog(tmp_path / "log"), ScriptedModel("Found.")
    await store_long_run(log, steps=300)
    agent = Agent(model, name="searcher", log=log, limits=Limits(iterations=1_000))
    async with agent.fork("long", at=1_501) as run:
        assert (await run).content == "Found."
    model.requests.clear()
    async with count_turns() as turns:
        for each in (Message, ContentCompleteEvent, ToolCompleteEvent):
            monkeypatch.setattr(each, "__del__", lambda event: turns.count_item(), raising=False)
        del run
        await wait_until(lambda: turns.items.total() + turns.items_in_threads >= 1_200)
    assert turns.items.total() < 20
    await log.aclose()


@pytest.mark.service("postgres")
@pytest.mark.parametrize("log", ["postgres"], indirect=True)
async def test_postgres_log_does_not_wait_for_user_functions(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(THREADS, "_max_running", 1)
    user_function = THREADS.submit(may_end.wait)
    try:
        async with asyncio.timeout(20):
            # Stores and reads more than 500 events at once.
            await store_long_run(log, steps=190)
            assert len(await log.read("long")) == 953
            assert len((await log.snapshot("long")).events) == 953
    finally:
        may_end.set()
        assert user_function.result()


@pytest.mark.parametrize("is_busy", [False, True])
async def test_sqlite_log_writes_in_its_thread_while_large_data_is_processed(
    is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, transaction = set[int](), writer.transaction

    def watch(*args: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return transaction(*args, **options)

    log = SqliteEventLog(tmp_path / "log")
    agent = Agent(ScriptedModel(*["Hi."] * 2), log=log)
    # Opens the file.
    await agent.run("Hello.")
    monkeypatch.setattr(writer, "transaction", watch)
    with ignore_large_data(500 if is_busy else 0):
        await agent.run("Hello again.")
    await log.aclose()
    assert (threading.get_ident() not in threads) is is_busy


async def test_copied_events_of_a_fork_are_collected_in_small_parts(tmp_path: Path) -> None:
    log, sizes = SqliteEventLog(tmp_path / "log"), list[int]()
    await store_long_run(log, steps=2_000)

    def measure(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and is_processing_large_data() and info["generation"] == 0:
            sizes.append(len(gc.get_objects(generation=0)))

    agent = Agent(ScriptedModel("Found."), name="searcher", log=log, limits=Limits(iterations=3_000))
    gc.callbacks.append(measure)
    try:
        async with agent.fork("long", at=10_001) as run:
            assert (await run).content == "Found."
    finally:
        gc.callbacks.remove(measure)
        await log.aclose()
    assert sizes
    # A collection of 50,000 objects takes 20 milliseconds.
    assert max(sizes) < 10_000


@pytest.mark.parametrize("log", LOGS, indirect=True)
async def test_events_of_many_short_runs_are_parsed_like_those_of_a_long_run(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(ScriptedModel(*["Hello."] * 100), log=log)
    for number in range(100):
        await agent.run([Message.user(str(number))], context_id="talk")
    await agent.aclose()
    threads, excluded = set[threading.Thread](), set[bool]()
    parse: Any = Event.from_json

    def watch(cls: type[Event], data: bytes) -> Event:
        threads.add(threading.current_thread())
        excluded.add(is_processing_large_data())
        return parse(data)

    monkeypatch.setattr(Event, "from_json", classmethod(watch))
    # Folds of this version do not exist.
    page = await log.read_conversation("talk", before="", version=0)
    assert len(page.parts) == 100
    assert threading.current_thread() not in threads
    assert excluded == {True}


@pytest.mark.service("postgres")
@pytest.mark.parametrize("log", ["postgres"], indirect=True)
async def test_snapshot_of_a_run_that_is_deleted_while_it_is_read_is_an_error(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_long_run(log, steps=240)
    fetch_rows = reads.fetch_rows

    async def delete_and_fetch(cursor: Any) -> list[Any]:
        return (await fetch_rows(cursor))[:0]

    # As if the run had been deleted after the first events.
    monkeypatch.setattr(reads, "fetch_rows", delete_and_fetch)
    with pytest.raises(UnknownRun, match="long"):
        await log.snapshot("long")
