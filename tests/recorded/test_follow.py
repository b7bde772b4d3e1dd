"""Tests for following active runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ConfigurationError,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    GapEvent,
    MemoryEventLog,
    Message,
    SqliteEventLog,
    StatusUpdateEvent,
    TaskEvent,
    follow,
    op,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.recorded.follow import read_chunks
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.run_checks import run_ready_tasks
from support.runs import collect


def event(seq: int, attempt: int = 1, *, of: type[Event] = CustomEvent, **fields: Any) -> Event:
    own: dict[str, Any] = {"name": f"note {seq}"} if of is CustomEvent else {}
    return of(task_id="run", context_id="c", seq=seq, attempt=attempt, timestamp=seq, **{**own, **fields})


def start_events() -> list[Event]:
    return [event(1, of=TaskEvent, messages=[Message.user("Hi")], model="m", agent_name="a"), working(2)]


def working(seq: int, attempt: int = 1) -> Event:
    after = seq - 1 if attempt > 1 else None
    return event(seq, attempt, of=StatusUpdateEvent, state="working", resumed=attempt > 1, after_seq=after)


def final(seq: int, attempt: int = 1, state: str = "completed") -> Event:
    return event(seq, attempt, of=StatusUpdateEvent, state=state, final=True)


class RecordedLog:
    """Log with a single run."""

    def __init__(self) -> None:
        self.log = MemoryEventLog()
        self.events: list[Event] = []

    async def write(self, *events: Event) -> None:
        await self.log.append("run", events, expected_seq=len(self.events))
        self.events += events
        await run_ready_tasks()

    def follow(self, after: str | None = None, **options: Any) -> "Reader":
        return Reader(follow(self.log, "run", after=after, **options))


class Reader:
    """Background reader of a stream."""

    def __init__(self, stream: Any) -> None:
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for event in stream:
            self.events.append(event)

    @property
    def seen(self) -> list[Any]:
        """Event numbers and gaps."""
        return [event.reason if isinstance(event, GapEvent) else event.seq for event in self.events]


@pytest.fixture
def recorded_log() -> RecordedLog:
    return RecordedLog()


async def test_follow_yields_stored_and_new_events_until_the_end(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events())
    reader, late = recorded_log.follow(), recorded_log.follow("run/1.1.0")
    await run_ready_tasks()
    assert (reader.seen, late.seen) == ([1, 2], [2])

    await recorded_log.write(event(3), event(4))
    assert (reader.seen, late.seen) == ([1, 2, 3, 4], [2, 3, 4])

    await recorded_log.write(final(5))
    await asyncio.gather(reader.task, late.task)
    assert reader.events == recorded_log.events
    assert late.seen == [2, 3, 4, 5]


async def test_cursor_of_a_transient_event_continues_after_its_durable_event(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), event(3), final(4))
    reader = recorded_log.follow("run/1.2.17")
    await reader.task

    assert reader.seen == [3, 4]


async def test_follow_continues_with_a_started_attempt(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), final(3, state="canceled"), working(4, 2))
    reader, late = recorded_log.follow(), recorded_log.follow("run/1.3.0")
    await recorded_log.write(event(5, 2), final(6, 2))
    await asyncio.gather(reader.task, late.task)

    assert (reader.seen, late.seen) == ([1, 2, 3, 4, 5, 6], [4, 5, 6])


@pytest.mark.parametrize("cursor", ["run/1.4.0", "run/1.7.0", "run/1.3.2"])
async def test_cursor_of_a_lost_attempt_gets_a_gap_and_the_new_attempt(recorded_log: RecordedLog, cursor: str) -> None:
    # The first attempt reached 1.7.0, but the events after 1.3.0 were lost in a crash.
    await recorded_log.write(*start_events(), event(3))
    await recorded_log.write(*[working(4, 2), event(5, 2), event(6, 2), event(7, 2), final(8, 2)])
    reader = recorded_log.follow(cursor)
    await reader.task

    assert reader.seen == ["lost-attempt", 4, 5, 6, 7, 8]
    gap = reader.events[0]
    assert isinstance(gap, GapEvent)
    assert (gap.after, gap.task_id, gap.context_id, gap.attempt) == (cursor, "run", "c", 2)


async def test_cursor_of_a_complete_older_attempt_gets_no_gap(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), event(3), working(4, 2), event(5, 2), working(6, 3), final(7, 3))
    for cursor, seen in [("run/1.2.0", [3, 4, 5, 6, 7]), ("run/1.3.0", [4, 5, 6, 7]), ("run/2.5.0", [6, 7])]:
        reader = recorded_log.follow(cursor)
        await reader.task
        assert reader.seen == seen
    lost = recorded_log.follow("run/2.6.0")
    await lost.task
    assert lost.seen == ["lost-attempt", 6, 7]


async def test_reader_ahead_of_the_log_gets_no_duplicates(recorded_log: RecordedLog) -> None:
    # The reader received events up to 1.5.0 before they were stored.
    await recorded_log.write(*start_events(), event(3))
    reader = recorded_log.follow("run/1.5.0")
    await run_ready_tasks()
    await recorded_log.write(event(4), event(5))
    assert reader.seen == []
    await recorded_log.write(event(6), final(7))
    await reader.task

    assert reader.seen == [6, 7]


async def test_reader_ahead_of_the_log_gets_a_gap_when_its_events_are_lost(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), event(3))
    reader = recorded_log.follow("run/1.6.0")
    await run_ready_tasks()
    await recorded_log.write(event(4), working(5, 2), final(6, 2))
    await reader.task

    assert reader.seen == ["lost-attempt", 5, 6]


@pytest.mark.parametrize("cursor", ["other/1.2.0", "run/1.9.0", "run/2.3.0", "run/0.2.0"])
async def test_cursor_of_another_run_gets_a_gap_and_all_events(recorded_log: RecordedLog, cursor: str) -> None:
    await recorded_log.write(*start_events(), event(3), final(4))
    reader = recorded_log.follow(cursor)
    await reader.task

    assert reader.seen == ["unknown-cursor", 1, 2, 3, 4]


async def test_invalid_cursor_is_rejected_unless_strict_is_false(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), final(3))
    with pytest.raises(ConfigurationError, match=r"a cursor must have the form .* got '17'"):
        recorded_log.follow("17")
    reader = recorded_log.follow("17", strict=False)
    await reader.task

    assert reader.seen == ["unknown-cursor", 1, 2, 3]


async def test_trimmed_events_are_a_gap(recorded_log: RecordedLog) -> None:
    class Trimmed(MemoryEventLog):
        """Log with trimmed events."""

        async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
            return [event for event in await super().read(task_id, after_seq=after_seq) if event.seq > 3]

        async def follow(self, task_id: str, *, after_seq: int = 0, **options: Any) -> AsyncIterator[Event]:
            async for event in super().follow(task_id, after_seq=after_seq, **options):
                if event.seq > 3:
                    yield event

    recorded_log.log = Trimmed()
    await recorded_log.write(*start_events(), event(3), event(4), final(5))
    for cursor, seen, count in [(None, ["trimmed", 4, 5], 3), ("run/1.1.0", ["trimmed", 4, 5], 2)]:
        reader = recorded_log.follow(cursor)
        await reader.task
        assert reader.seen == seen
        assert reader.events[0].count == count  # type: ignore[attr-defined]
    for cursor, seen in [("run/1.3.0", [4, 5]), ("run/1.4.0", [5])]:
        reader = recorded_log.follow(cursor)
        await reader.task
        assert reader.seen == seen


async def test_follow_raises_unknown_run() -> None:
    for after in (None, "run/1.1.0"):
        with pytest.raises(UnknownRun, match="run"):
            await follow(MemoryEventLog(), "run", after=after)


async def test_closed_follower_stops_reading(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events())
    events = aiter(written_events := follow(recorded_log.log, "run"))
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    await run_ready_tasks()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert written_events is not None


async def test_views_and_server_sent_events_work_on_followed_events(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), event(3), final(4))
    names = [each.name async for each in follow(recorded_log.log, "run").pipe(op.of_type(CustomEvent))]
    sent = [frame async for frame in follow(recorded_log.log, "run", after="other/1.1.0").sse()]

    assert names == ["note 3"]
    kinds = [json.loads(frame.split(b"data: ")[1])["kind"] for frame in sent]
    assert kinds == ["gap", "task", "status-update", "custom", "status-update"]
    assert b"id: run/1.3.0\n" in sent[3]


def test_live_run_is_followed_with_every_durable_event() -> None:
    @tool
    async def work(n: int) -> int:
        """Takes a second."""
        await asyncio.sleep(1)
        return n

    log = MemoryEventLog()
    with virtual_time() as time:
        model = ScriptedModel([call("work", n=1), call("work", n=2)], frames("--It is--done.|", 0.25))
        run = Agent(model, tools=[work], log=log).run("Go")

        async def observe() -> tuple[list[Event], list[Event], list[Event]]:
            live = asyncio.create_task(collect(run))
            await asyncio.sleep(0.5)
            early = asyncio.create_task(collect_all(follow(log, run.task_id)))
            await asyncio.sleep(0.7)
            late = asyncio.create_task(
                collect_all(follow(log, run.task_id, after=(await read_live_events())[-1].cursor))
            )
            return await live, await early, await late

        async def read_live_events() -> list[Event]:
            return list(await log.read(run.task_id))

        live, early, late = time.run(observe())

    durable = [event for event in live if event.durable]
    assert early == durable
    assert late == durable[len(durable) - len(late) :]
    assert 0 < len(late) < len(durable)


async def collect_all(stream: Any) -> list[Event]:
    return [event async for event in stream]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4),
    cancel_time=st.integers(0, 12),
    data=st.data(),
)
def test_reader_that_reconnects_after_crashes_has_all_events_in_order(
    lengths: list[tuple[int, int]], cancel_time: int, data: st.DataObject
) -> None:
    """Create attempts with lost events, and follow them from a partial read."""
    kept: list[Event] = start_events()[:1]
    seen_by_attempt: list[list[Event]] = []
    for attempt, (length, lost) in enumerate(lengths, start=1):
        base = len(kept)
        own = [working(base + 1, attempt), *(event(base + 2 + n, attempt) for n in range(length + lost))]
        seen_by_attempt.append([*kept, *own])
        kept += own[: length + 1] if attempt < len(lengths) else own
    kept.append(final(len(kept) + 1, len(lengths)))
    seen = data.draw(st.sampled_from(seen_by_attempt))
    at = data.draw(st.integers(1, len(seen)))
    had = seen[:at]
    cancel_time = min(cancel_time, len(kept))

    async def scenario() -> Reader:
        recorded_log = RecordedLog()
        await recorded_log.write(*kept[: max(cancel_time, 1)])
        reader = recorded_log.follow(had[-1].cursor)
        await run_ready_tasks()
        for each in kept[max(cancel_time, 1) :]:
            await recorded_log.write(each)
        await reader.task
        return reader

    reader = asyncio.run(scenario())

    gaps = [each for each in reader.events if isinstance(each, GapEvent)]
    got = [each for each in reader.events if not isinstance(each, GapEvent)]
    first = got[0].seq if got else len(kept) + 1
    # Events before the gap and new events must add up to the complete run.
    assert [*had[: first - 1], *got] == kept
    if gaps:
        assert isinstance(reader.events[0], GapEvent)
    else:
        assert had == kept[:at]


async def test_follow_until_the_end_continues_after_pauses(recorded_log: RecordedLog) -> None:
    await recorded_log.write(*start_events(), final(3, state="input-required"))
    attempt, whole = recorded_log.follow(), recorded_log.follow(until="end")
    await attempt.task
    await run_ready_tasks()
    assert not whole.task.done()

    await recorded_log.write(working(4, 2), final(5, 2))
    await whole.task
    assert (attempt.seen, whole.seen) == ([1, 2, 3], [1, 2, 3, 4, 5])


async def test_follow_yields_stored_deltas_after_the_cursor(recorded_log: RecordedLog) -> None:
    recorded_log.log = MemoryEventLog(keep_deltas=True)
    deltas = [event(2, of=ContentDeltaEvent, sub=sub, delta="a") for sub in (1, 2, 3)]
    await recorded_log.log.append("run", [*start_events(), *deltas, event(3), final(4)], expected_seq=0)
    reader, plain = recorded_log.follow("run/1.2.1", deltas=True), recorded_log.follow("run/1.2.1")
    await asyncio.gather(reader.task, plain.task)

    assert [(each.seq, each.sub) for each in reader.events] == [(2, 2), (2, 3), (3, 0), (4, 0)]
    assert plain.seen == [3, 4]


def test_follower_ends_with_the_attempt_or_the_run(recorded_log: RecordedLog) -> None:
    with pytest.raises(ConfigurationError, match="until must be 'attempt' or 'end', got 'later'"):
        recorded_log.follow(until="later")


async def test_chunks_of_a_run_end_after_a_number_of_bytes_or_events(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    sizes = [100_000] * 10 + [1_000_000] + [10] * 500
    notes = [event(seq, data="x" * size) for seq, size in enumerate(sizes, start=3)]
    events = [*start_events(), *notes]
    await log.append("run", events, expected_seq=0)
    chunks = [chunk async for chunk in read_chunks(log, "run", last_seq=len(events))]
    assert [each.seq for chunk in chunks for each in chunk] == [each.seq for each in events]
    assert len(chunks) >= 7
    for chunk in chunks:
        assert len(chunk) <= 200
        # A chunk ends with the event that exceeds the size.
        assert sum(each.decoded_size for each in chunk[:-1]) < 1 << 18
    await log.aclose()
