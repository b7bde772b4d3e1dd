"""Reading and following runs in Postgres."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, PostgresEventLog, follow, history
from rxloop.errors import EventLogError, UnknownRun
from rxloop.protocol.commands import CancelCommand
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.storage.postgres import listener as listener_module
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import SECONDS, Follower, end, note, start_events, status, wait_for
from support.postgres.logs import MakeLog, is_listening, query_rows
from support.run_checks import wait_until

pytestmark = pytest.mark.service("postgres")


async def test_any_number_of_readers_share_six_connections(postgres_database: str) -> None:
    log, writer = PostgresEventLog(postgres_database), PostgresEventLog(postgres_database)
    for number in range(10):
        await writer.append(f"run{number}", start_events(f"run{number}"), expected_seq=0)
    followers = [Follower(log, f"run{number % 10}") for number in range(300)]
    stops = [log.watch_commands(f"run{number}", lambda: None) for number in range(10)]
    await log.acquire_lease("c", "run0", lambda: None)
    await log.append("run0", [note(3)], expected_seq=2)
    for number in range(1, 10):
        await writer.append(f"run{number}", [note(3)], expected_seq=2)
    for follower in followers:
        await follower.wait_for_events(1, 2, 3)
    await writer.aclose()
    [[count]] = await query_rows(
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


async def test_poll_finds_events_and_commands_without_notifications(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(listener_module.Listener, "_handle_notification", lambda *_: None)
    log, writer = new_log(), new_log()
    await writer.append("run", start_events(), expected_seq=0)
    follower, arrived = Follower(log), asyncio.Event()
    stop = log.watch_commands("run", arrived.set)
    await follower.wait_for_events(1, 2)
    await writer.append("run", [note(3)], expected_seq=2)
    await follower.wait_for_events(1, 2, 3)
    arrived.clear()
    await writer.send_command("run", CancelCommand())
    async with asyncio.timeout(SECONDS):
        await arrived.wait()
    stop()
    await writer.append("run", [end(4)], expected_seq=3)
    await wait_for(follower)


async def test_slow_reader_loses_no_events(new_log: MakeLog) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", start_events(), expected_seq=0)
    events = aiter(log.follow("run"))
    seen = [(await anext(events)).seq, (await anext(events)).seq]
    follower = Follower(log)
    await follower.wait_for_events(1, 2)
    for first in range(3, 2_003, 100):
        await writer.append("run", [note(seq) for seq in range(first, first + 100)], expected_seq=first - 1)
    await writer.append("run", [end(2_003)], expected_seq=2_002)
    await wait_for(follower)
    seen += [event.seq async for event in events]
    assert seen == follower.received == [*range(1, 2_004)]


async def test_followers_end_when_their_run_is_deleted(new_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "POLL_SECONDS", 0.05)
    log, writer = new_log(), new_log()
    await writer.append("run", [*start_events(), end(3)], expected_seq=0)
    await writer.append("run", [status(4, "working", attempt=2)], expected_seq=3)
    follower = Follower(log)
    await follower.wait_for_events(1, 2, 3, 4)
    schema = writer._address.schema
    await query_rows(writer._address.dsn, f"DELETE FROM {schema}.runs")
    with pytest.raises(UnknownRun, match="run"):
        await asyncio.wait_for(follower.task, SECONDS)


async def test_followers_get_an_error_when_the_log_is_rolled_back(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "POLL_SECONDS", 0.05)
    log, writer = new_log(), new_log()
    await writer.append("run", [*start_events(), note(3), note(4)], expected_seq=0)
    follower = Follower(log)
    await follower.wait_for_events(1, 2, 3, 4)
    address = writer._address
    await query_rows(address.dsn, f"UPDATE {address.schema}.runs SET seq = 3")
    with pytest.raises(EventLogError, match="rolled back: event 4 of run run is missing"):
        await asyncio.wait_for(follower.task, SECONDS)


# -- transient events


def delta(seq: int, sub: int, text: str) -> Event:
    return ContentDeltaEvent(seq=seq, sub=sub, delta=text, step="1")


async def wait_for_listeners(*logs: PostgresEventLog, task_id: str = "run") -> None:
    """Wait until notifications for a run reach the followers of each log."""
    await wait_until(lambda: all(task_id in log._engine().listener.tails.by_task for log in logs))
    await wait_until(lambda: is_listening(*logs))


async def collect(log: PostgresEventLog, target: list[Event], **options: Any) -> None:
    async for event in log.follow("run", deltas=True, **options):
        target.append(event)  # noqa: PERF401 (it is read meanwhile)


async def test_transient_events_reach_followers_in_order_and_are_not_stored(
    new_log: MakeLog,
) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", start_events(), expected_seq=0)
    far, near, plain = list[Event](), list[Event](), Follower(log)
    readers = [asyncio.create_task(collect(log, far)), asyncio.create_task(collect(writer, near))]
    await plain.wait_for_events(1, 2)
    await wait_for_listeners(log, writer)
    long = "é" * 9_000
    # A reader that has read a later event from the log omits earlier deltas.
    await wait_until(lambda: len(far) == len(near) == 2)
    await writer.append("run", [note(3), delta(3, 1, "a"), delta(3, 2, "b")], expected_seq=2)
    await wait_until(lambda: all((seen[-1].seq, seen[-1].sub) == (3, 2) for seen in (far, near)))
    await writer.append("run", [delta(3, 3, "c"), delta(3, 4, long)], expected_seq=3)
    await wait_until(lambda: all((seen[-1].seq, seen[-1].sub) == (3, 4) for seen in (far, near)))
    await writer.append("run", [delta(3, 5, "d"), note(4), delta(4, 1, "e"), end(5)], expected_seq=3)
    await asyncio.wait_for(asyncio.gather(*readers, plain.task), SECONDS)

    for seen in (far, near):
        positions = [(event.seq, event.sub) for event in seen]
        assert positions == sorted({*positions})
        assert [event.seq for event in seen if event.durable] == [1, 2, 3, 4, 5]
        assert "".join(event.delta for event in seen if isinstance(event, ContentDeltaEvent)) == f"abc{long}de"
    # Deltas are merged for transport.
    assert [(event.seq, event.sub) for event in far if not event.durable] == [(3, 2), (3, 4), (3, 5), (4, 1)]
    assert plain.received == [1, 2, 3, 4, 5]
    assert all(event.durable for event in await log.read("run", deltas=True))


async def test_refused_writer_delivers_no_transient_events(new_log: MakeLog) -> None:
    log, writer = new_log(), new_log()
    await writer.append("run", [*start_events(), note(3)], expected_seq=0)
    seen = list[Event]()
    reader = asyncio.create_task(collect(log, seen))
    await wait_for_listeners(log)
    with pytest.raises(EventLogError, match="the writer expected 2"):
        await writer.append("run", [delta(2, 1, "stale")], expected_seq=2)
    await writer.append("run", [delta(3, 1, "true"), end(4)], expected_seq=3)
    await asyncio.wait_for(reader, SECONDS)
    assert [event.delta for event in seen if isinstance(event, ContentDeltaEvent)] == ["true"]


async def test_deltas_of_a_run_can_be_followed_from_another_process(new_log: MakeLog) -> None:
    log, elsewhere = new_log(), new_log()
    agent = Agent(ScriptedModel("It is sunny in Oslo today, and will be tomorrow."), log=log)
    run = agent.run("Hello")
    await run.begin()
    following = [event async for event in follow(elsewhere, run.task_id, deltas=True)]
    assert (await run).output == "It is sunny in Oslo today, and will be tomorrow."
    assert [event.seq for event in following if event.durable] == [event.seq for event in await log.read(run.task_id)]


@pytest.mark.parametrize("deltas", ["drop", "keep"])
async def test_transient_events_may_be_dropped_or_stored(new_log: MakeLog, deltas: Any) -> None:
    log = new_log(deltas=deltas)
    assert log.keeps_deltas == (deltas == "keep")
    assert log.passes_deltas == (deltas == "keep")
    result = await Agent(ScriptedModel("One two three."), log=log).run("Hello")
    durable_flags = [event.durable for event in await log.read(result.task_id, deltas=True)]
    assert all(durable_flags) == (deltas == "drop")


# -- conversations


async def test_conversation_continues_in_another_process(new_log: MakeLog) -> None:
    first, second = new_log(), new_log()
    model = ScriptedModel("Hello Ann.", "You are Ann.", "Indeed.")
    await Agent(model, log=first).run("I am Ann.", context_id="ann")
    await Agent(model, log=second).run("Who am I?", context_id="ann")
    await Agent(model, log=first).run("Sure?", context_id="ann")
    contents = [message.content for message in await history(new_log(), "ann") if message.role != "system"]
    assert contents == ["I am Ann.", "Hello Ann.", "Who am I?", "You are Ann.", "Sure?", "Indeed."]
