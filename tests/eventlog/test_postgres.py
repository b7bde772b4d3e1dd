"""A log in Postgres: servers that go away, answers that are lost, many readers, and who may do what."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from postgres import PostgresServer, new_schema
from rxloop import Agent, ConfigurationError, EventLogError, LogUnreachable, PostgresEventLog, follow, history
from rxloop.errors import UnknownRun
from rxloop.eventlog._postgres import hearing
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract._tools import SECONDS, Follower, begun, end, ids, note, status, task, wait_for

pytestmark = pytest.mark.service("postgres")

MakeLog = Callable[..., PostgresEventLog]


@pytest.fixture
async def new_log(postgres: str) -> AsyncIterator[MakeLog]:
    """Makes logs over one schema."""
    logs: list[PostgresEventLog] = []
    every: dict[str, Any] = {"schema": new_schema()}

    def make(address: str = postgres, **options: Any) -> PostgresEventLog:
        logs.append(PostgresEventLog(address, **{**every, **options}))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


async def asked(address: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a query gives."""
    connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
    async with connection:
        cursor = await connection.execute(query.encode(), values)
        return await cursor.fetchall() if cursor.description else []


class Proxy:
    """A way to the server that may cut off answers, or hold them back."""

    def __init__(self) -> None:
        self.cut_answers = False
        self.free = asyncio.Event()
        self.free.set()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> str:
        """Begin, and give the address of the way through."""
        parts = conninfo_to_dict(address)
        host, port = str(parts.get("host") or "127.0.0.1"), int(str(parts.get("port") or 5432))

        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, port)
            self._writers += [writer, back]
            for source, target, answers in ((reader, back, False), (there, writer, True)):
                self._tasks.add(asyncio.create_task(self._pass(source, target, answers)))

        self._server = await asyncio.start_server(through, "127.0.0.1", 0)
        new = self._server.sockets[0].getsockname()[1]
        return address.replace(f"{parts.get('host')}:{parts.get('port')}", f"127.0.0.1:{new}")

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        while data := await source.read(1 << 16):
            if answers and self.cut_answers:
                break
            if answers:
                await self.free.wait()
            target.write(data)
        target.close()

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for passing in self._tasks:
            passing.cancel()
        await asyncio.wait(self._tasks)


# -- a server that goes away


class Writing:
    """Runs that are written one event after the other, until that is enough."""

    def __init__(self, log: PostgresEventLog, count: int) -> None:
        self._log, self._stop = log, asyncio.Event()
        self.names = [f"run{number}" for number in range(count)]
        self._last = dict.fromkeys(self.names, 0)
        self._grown = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(name)) for name in self.names]

    async def _write(self, name: str) -> int:
        seq = 0
        while not seq or not self._stop.is_set():
            events = [note(seq + 1)] if seq else begun(name, context_id=name)
            await self._log.append(name, events, expected_seq=seq, writer=name)
            seq += len(events)
            self._last[name] = seq
            self._grown.set()
        await self._log.append(name, [end(seq + 1)], expected_seq=seq, writer=name)
        return seq + 1

    async def goes_on(self) -> None:
        """Wait until each run has grown by some events."""
        enough = {name: seq + 10 for name, seq in self._last.items()}
        async with asyncio.timeout(60):
            while any(self._last[name] < seq for name, seq in enough.items()):
                self._grown.clear()
                await self._grown.wait()

    async def stop(self) -> list[int]:
        """End the runs; give the last event of each."""
        self._stop.set()
        return await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("kill", [False, True])
async def test_a_server_that_comes_back_disturbs_no_writer_and_no_follower(kill: bool) -> None:
    with PostgresServer() as server:
        log, other = PostgresEventLog(server.dsn, patience=60), PostgresEventLog(server.dsn, patience=60)
        writing = Writing(log, 20)
        await writing.goes_on()
        followers = [Follower(other, name) for name in writing.names]
        for _ in range(2):
            await writing.goes_on()
            server.kill() if kill else server.stop()
            await asyncio.to_thread(server.start)
        await writing.goes_on()
        last = await writing.stop()
        await asyncio.wait_for(asyncio.gather(*(follower.task for follower in followers)), 60)
        assert [follower.seen for follower in followers] == [[*range(1, seq + 1)] for seq in last]
        for name, seq in zip(writing.names, last, strict=True):
            assert [event.seq for event in await log.read(name)] == [*range(1, seq + 1)]
        await log.aclose()
        await other.aclose()


async def test_a_server_that_stays_away_is_unreachable_after_the_patience() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=0.3)
        await log.append("run", begun(), expected_seq=0)
        server.stop()
        began = time.monotonic()
        for call in (
            log.append("run", [note(3)], expected_seq=2),
            log.read("run"),
            log.take_turn("c", "run", lambda: None),
        ):
            with pytest.raises(LogUnreachable, match=rf"the event log postgresql://127.0.0.1:{server.port}/postgres"):
                await call
        assert 0.3 < time.monotonic() - began < 8
        await asyncio.to_thread(server.start)
        await log.append("run", [note(3)], expected_seq=2)
        await log.aclose()


async def test_a_batch_whose_answer_is_lost_is_there_once(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    log = new_log(await proxy.start(postgres))
    await log.append("run", begun(), expected_seq=0, writer="mine")
    for seq in range(3, 33, 2):
        proxy.cut_answers = True
        # With a name and without: it is the log that tries again.
        appending = asyncio.create_task(
            log.append("run", [note(seq), note(seq + 1)], expected_seq=seq - 1, writer="mine" if seq % 4 == 1 else "")
        )
        sending = asyncio.create_task(log.send("run", letter()))
        await asyncio.sleep(0.05)
        proxy.cut_answers = False
        await appending
        await sending
    assert [event.seq for event in await log.read("run")] == [*range(1, 33)]
    assert len(await log.mail("run")) == 15
    await log.aclose()
    await proxy.stop()


def letter() -> Any:
    from rxloop.protocol.mail import CancelMail

    return CancelMail()


async def test_a_server_that_hangs_is_given_up_and_asked_again(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    log = new_log(await proxy.start(postgres))
    await log.append("run", begun(), expected_seq=0, writer="mine")
    log._engine().write._answers_in = 0.2
    proxy.free.clear()
    appending = asyncio.create_task(log.append("run", [note(3)], expected_seq=2, writer="mine"))
    await asyncio.sleep(0.5)
    assert not appending.done()
    proxy.free.set()
    await appending
    assert len(await log.read("run")) == 3
    await log.aclose()
    await proxy.stop()


async def test_a_batch_that_cannot_be_kept_fails_alone(new_log: MakeLog) -> None:
    log = new_log()
    named = task(task_id="bad").model_copy(update={"agent_name": "a\0b"})
    outcomes = await asyncio.gather(
        *(log.append(name, begun(name), expected_seq=0) for name in "ab"),
        log.append("bad", [named], expected_seq=0),
        log.append("stale", [note(8)], expected_seq=7),
        *(log.append(name, begun(name), expected_seq=0) for name in "cd"),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes[2:4]] == ["EventLogError", "ConflictError"]
    assert "NUL" in str(outcomes[2])
    assert ids(await log.runs()) == ["a", "b", "c", "d"]


async def test_everything_that_waits_is_written_by_one_statement(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("first", begun("first"), expected_seq=0)
    before = await _commits(log)
    await asyncio.gather(*(log.append(f"run{number}", begun(f"run{number}"), expected_seq=0) for number in range(200)))
    assert await _commits(log) - before <= 3


async def _commits(log: PostgresEventLog) -> int:
    """How often the writing connection has written."""
    lane = log._engine().write
    if not hasattr(lane, "count"):
        once, counted = lane._once, [0]

        async def counting(work: Any) -> Any:
            counted[0] += 1
            return await once(work)

        lane._once, lane.count = counting, counted  # type: ignore[attr-defined, method-assign]
    return lane.count[0]  # type: ignore[attr-defined]


# -- readers


async def test_any_number_of_readers_share_six_connections(postgres_database: str) -> None:
    log, writer = PostgresEventLog(postgres_database), PostgresEventLog(postgres_database)
    for number in range(10):
        await writer.append(f"run{number}", begun(f"run{number}"), expected_seq=0)
    followers = [Follower(log, f"run{number % 10}") for number in range(300)]
    stops = [log.watch(f"run{number}", lambda: None) for number in range(10)]
    await log.take_turn("c", "run0", lambda: None)
    await log.append("run0", [note(3)], expected_seq=2)
    for number in range(1, 10):
        await writer.append(f"run{number}", [note(3)], expected_seq=2)
    for follower in followers:
        await follower.sees(1, 2, 3)
    await writer.aclose()
    [[count]] = await asked(
        postgres_database,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rxloop'",
    )
    assert count <= 6
    for number in range(10):
        await log.append(f"run{number}", [end(4)], expected_seq=3)
    await wait_for(*followers)
    for stop in stops:
        stop()
    await log.aclose()


async def test_the_poll_finds_what_nobody_was_told_of(new_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(hearing.Hearing, "_told", lambda *_: None)
    log, writer = new_log(), new_log()
    await writer.append("run", begun(), expected_seq=0)
    follower, mail = Follower(log), asyncio.Event()
    stop = log.watch("run", mail.set)
    await follower.sees(1, 2)
    await writer.append("run", [note(3)], expected_seq=2)
    await follower.sees(1, 2, 3)
    mail.clear()
    await writer.send("run", letter())
    async with asyncio.timeout(SECONDS):
        await mail.wait()
    stop()
    await writer.append("run", [end(4)], expected_seq=3)
    await wait_for(follower)


async def test_a_reader_that_is_far_behind_loses_nothing(new_log: MakeLog) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", begun(), expected_seq=0)
    events = aiter(log.follow("run"))
    seen = [(await anext(events)).seq, (await anext(events)).seq]
    follower = Follower(log)
    await follower.sees(1, 2)
    for first in range(3, 2_003, 100):
        await writer.append("run", [note(seq) for seq in range(first, first + 100)], expected_seq=first - 1)
    await writer.append("run", [end(2_003)], expected_seq=2_002)
    await wait_for(follower)
    seen += [event.seq async for event in events]
    assert seen == follower.seen == [*range(1, 2_004)]


async def test_a_run_that_is_removed_ends_its_followers(new_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "POLL_SECONDS", 0.05)
    log, writer = new_log(), new_log()
    await writer.append("run", [*begun(), end(3)], expected_seq=0)
    await writer.append("run", [status(4, "working", attempt=2)], expected_seq=3)
    follower = Follower(log)
    await follower.sees(1, 2, 3, 4)
    schema = writer._address.schema
    await asked(writer._address.dsn, f"DELETE FROM {schema}.runs")
    with pytest.raises(UnknownRun, match="run"):
        await asyncio.wait_for(follower.task, SECONDS)


async def test_a_log_that_went_back_in_time_is_said_to_its_followers(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "POLL_SECONDS", 0.05)
    log, writer = new_log(), new_log()
    await writer.append("run", [*begun(), note(3), note(4)], expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2, 3, 4)
    address = writer._address
    await asked(address.dsn, f"UPDATE {address.schema}.runs SET seq = 3")
    with pytest.raises(EventLogError, match="gone back from event 4 of the run run to event 3"):
        await asyncio.wait_for(follower.task, SECONDS)


# -- transient events


def delta(seq: int, sub: int, text: str) -> Event:
    return ContentDeltaEvent(seq=seq, sub=sub, delta=text, step="1")


async def listening(log: PostgresEventLog, task_id: str = "run") -> None:
    """Wait until a run is followed, and it is listened to what is said of it."""
    tails = log._engine().hearing
    async with asyncio.timeout(SECONDS):
        while tails._connection is None or task_id not in tails.tails.of_task:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # And until it was asked what came before that.
        await asyncio.sleep(0.1)


async def collected(log: PostgresEventLog, into: list[Event], **options: Any) -> None:
    async for event in log.follow("run", deltas=True, **options):
        into.append(event)  # noqa: PERF401 (it is read meanwhile)


async def test_transient_events_reach_those_who_follow_behind_their_durable_one_and_are_not_kept(
    new_log: MakeLog,
) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", begun(), expected_seq=0)
    far, near, plain = list[Event](), list[Event](), Follower(log)
    readers = [asyncio.create_task(collected(log, far)), asyncio.create_task(collected(writer, near))]
    await plain.sees(1, 2)
    await listening(log)
    long = "é" * 9_000
    await writer.append("run", [note(3), delta(3, 1, "a"), delta(3, 2, "b")], expected_seq=2)
    await writer.append("run", [delta(3, 3, "c"), delta(3, 4, long)], expected_seq=3)
    await writer.append("run", [delta(3, 5, "d"), note(4), delta(4, 1, "e"), end(5)], expected_seq=3)
    await asyncio.wait_for(asyncio.gather(*readers, plain.task), SECONDS)

    for seen in (far, near):
        places = [(event.seq, event.sub) for event in seen]
        assert places == sorted({*places})
        assert [event.seq for event in seen if event.durable] == [1, 2, 3, 4, 5]
        assert "".join(event.delta for event in seen if isinstance(event, ContentDeltaEvent)) == f"abc{long}de"
    # Put together on their way.
    assert [(event.seq, event.sub) for event in far if not event.durable] == [(3, 2), (3, 4), (3, 5), (4, 1)]
    assert plain.seen == [1, 2, 3, 4, 5]
    assert all(event.durable for event in await log.read("run", deltas=True))


async def test_a_writer_that_is_refused_passes_nothing_on(new_log: MakeLog) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", [*begun(), note(3)], expected_seq=0)
    seen = list[Event]()
    reader = asyncio.create_task(collected(log, seen))
    await listening(log)
    with pytest.raises(EventLogError, match="expected seq 2"):
        await writer.append("run", [delta(2, 1, "stale")], expected_seq=2)
    await writer.append("run", [delta(3, 1, "true"), end(4)], expected_seq=3)
    await asyncio.wait_for(reader, SECONDS)
    assert [event.delta for event in seen if isinstance(event, ContentDeltaEvent)] == ["true"]


async def test_a_run_is_followed_token_by_token_from_another_process(new_log: MakeLog) -> None:
    log, elsewhere = new_log(), new_log()
    agent = Agent(ScriptedModel("It is sunny in Oslo today, and will be tomorrow."), log=log)
    run = agent.run("Hello")
    await run.begin()
    following = [event async for event in follow(elsewhere, run.task_id, deltas=True)]
    assert (await run).output == "It is sunny in Oslo today, and will be tomorrow."
    assert [event.seq for event in following if event.durable] == [event.seq for event in await log.read(run.task_id)]


@pytest.mark.parametrize("deltas", ["drop", "keep"])
async def test_transient_events_may_be_dropped_or_kept(new_log: MakeLog, deltas: Any) -> None:
    log = new_log(deltas=deltas)
    assert (log.keeps_deltas, log.passes_deltas) == (deltas == "keep", deltas == "keep")
    result = await Agent(ScriptedModel("One two three."), log=log).run("Hello")
    found = [event.durable for event in await log.read(result.task_id, deltas=True)]
    assert all(found) == (deltas == "drop")


# -- conversations


async def test_a_conversation_is_read_whole_or_from_where_it_was_left(new_log: MakeLog) -> None:
    log = new_log()
    for name in "abcd":
        await log.append(name, [*begun(name, context_id="c"), end(3, task_id=name)], expected_seq=0)
    await log.append("other", begun("other", context_id="d"), expected_seq=0)
    first = await log.histories("c", before="c")
    assert ([event.task_id for event in first.events], first.whole) == (["a"] * 3 + ["b"] * 3, True)
    assert (first.mark.runs, first.mark.events, first.mark.last) == (2, 6, "b")
    rest = await log.histories("c", before="new", after=first.mark)
    assert ([event.task_id for event in rest.events], rest.whole) == (["c"] * 3 + ["d"] * 3, False)
    assert (rest.mark.runs, rest.mark.events, rest.mark.last) == (4, 12, "d")
    await log.append("a", [status(4, "working", attempt=2)], expected_seq=3)
    anew = await log.histories("c", before="new", after=first.mark)
    assert (anew.whole, len(anew.events)) == (True, 13)
    nothing = await log.histories("c", before="new", after=anew.mark)
    assert (list(nothing.events), nothing.mark, nothing.whole) == ([], anew.mark, False)
    nobody = await log.histories("nowhere", before="x")
    assert (list(nobody.events), nobody.mark.runs, nobody.whole) == ([], 0, True)


async def test_an_agent_goes_on_with_a_conversation_in_another_process(new_log: MakeLog) -> None:
    first, second = new_log(), new_log()
    model = ScriptedModel("Hello Ann.", "You are Ann.", "Indeed.")
    await Agent(model, log=first).run("I am Ann.", context_id="ann")
    await Agent(model, log=second).run("Who am I?", context_id="ann")
    await Agent(model, log=first).run("Sure?", context_id="ann")
    told = [message.content for message in await history(new_log(), "ann") if message.role != "system"]
    assert told == ["I am Ann.", "Hello Ann.", "Who am I?", "You are Ann.", "Sure?", "Indeed."]


# -- who may do what, and where


async def test_several_processes_make_the_tables_at_once(postgres: str) -> None:
    schema = new_schema()
    logs = [PostgresEventLog(postgres, schema=schema) for _ in range(5)]
    await asyncio.gather(*(log.append(f"run{number}", [task()], expected_seq=0) for number, log in enumerate(logs)))
    assert len(await logs[0].runs()) == 5
    for log in logs:
        await log.aclose()


async def test_logs_in_two_schemas_know_nothing_of_each_other(new_log: MakeLog) -> None:
    one, two = new_log(), new_log(schema=new_schema())
    await one.append("run", begun(), expected_seq=0)
    assert ids(await two.runs()) == []
    assert await one.take_turn("c", "run", pytest.fail)
    assert await two.take_turn("c", "run", pytest.fail)
    assert one.identity != two.identity
    assert one.identity == new_log().identity


async def test_a_role_with_few_rights_is_enough_once_the_tables_are_there(postgres_database: str) -> None:
    role = f"rxloop_{secrets.token_hex(4)}"
    await asked(postgres_database, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        log = PostgresEventLog(postgres_database.replace("postgres@", f"{role}:x@"), lease=1_000)
        with pytest.raises(EventLogError, match=r"permission denied .*migrate\(grant=\.\.\.\)"):
            await log.runs()
        owner = PostgresEventLog(postgres_database)
        await owner.migrate(grant=role)
        await owner.migrate(grant=role)
        await log.append("run", begun(context_id="c"), expected_seq=0)
        assert await log.take_turn("c", "run", pytest.fail)
        await log.send("run", letter())
        assert ids(await log.orphans()) == []
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        await asked(postgres_database, ended, role)
        assert await log.has_turn("c", "run")
        await log.append("run", [end(3)], expected_seq=2)
        await log.delete("run")
        for statement in ("DROP TABLE rxloop.runs", "UPDATE rxloop.version SET number = 0"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await asked(log._address.dsn, statement)
        await log.aclose()
        await owner.aclose()
    finally:
        await asked(postgres_database, f"DROP OWNED BY {role}")
        await asked(postgres_database, f"DROP ROLE {role}")


async def test_tables_of_a_newer_version_are_left_alone(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
    await log.aclose()
    await asked(postgres, f"UPDATE {log._address.schema}.version SET number = 99")
    with pytest.raises(EventLogError, match="newer version of rxloop"):
        await new_log().append("run", [note(3)], expected_seq=2)


async def test_a_log_goes_through_a_bouncer_beside_its_sessions(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    shared = await proxy.start(postgres)
    log = new_log(shared, session_dsn=postgres)
    await log.append("run", begun(), expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2)
    assert await log.take_turn("c", "run", pytest.fail)
    # What goes through it has nothing that only one session knows.
    for lane in (log._engine().write, *log._engine().read.lanes):
        connection = lane._connection
        assert connection is None or connection.prepare_threshold is None
    proxy.cut_answers = True
    await asyncio.sleep(0.05)
    proxy.cut_answers = False
    await log.append("run", [end(3)], expected_seq=2, writer="mine")
    await wait_for(follower)
    assert await log.has_turn("c", "run")
    await log.aclose()
    await proxy.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dsn": "postgresql://h:1/db?nonsense=1"}, "dsn is no address of a Postgres database"),
        ({"dsn": "", "schema": 'a"b'}, "schema is a plain name"),
        ({"dsn": "", "lease": 0}, "lease is a number of seconds"),
        ({"dsn": "", "patience": -1}, "patience is a number of seconds"),
        ({"dsn": "", "deltas": "some"}, "deltas is 'drop', 'live' or 'keep', not 'some'"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PostgresEventLog(**options)


def test_a_forked_process_has_connections_of_its_own(postgres: str) -> None:
    log = PostgresEventLog(postgres, schema=new_schema())

    async def parent() -> None:
        await log.append("run", begun(), expected_seq=0)
        assert await log.take_turn("c", "run", pytest.fail)
        child = os.fork()
        if not child:
            code = 1
            try:
                # No loop of this process runs here.
                asyncio.events._set_running_loop(None)
                code = asyncio.run(in_child())
            finally:
                os._exit(code)
        assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
        assert await log.has_turn("c", "run")
        await log.append("run", [note(3)], expected_seq=2)
        assert ids(await log.runs()) == ["run", "child"]
        await log.aclose()

    async def in_child() -> int:
        assert not await log.take_turn("c", "run", lambda: None)
        await log.append("child", begun("child"), expected_seq=0)
        await log.aclose()
        return 0

    if sys.platform == "win32":
        pytest.skip("there are no forks")
    asyncio.run(parent())
