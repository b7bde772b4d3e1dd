"""Following a run that is being written, from another process or from another place in this one."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
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
    StatusUpdateEvent,
    TaskEvent,
    follow,
    op,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.run_checks import run_ready_tasks
from support.runs import collect


def event(seq: int, attempt: int = 1, *, of: type[Event] = CustomEvent, **fields: Any) -> Event:
    own: dict[str, Any] = {"name": f"note {seq}"} if of is CustomEvent else {}
    return of(task_id="run", context_id="c", seq=seq, attempt=attempt, timestamp=seq, **{**own, **fields})


def begun() -> list[Event]:
    return [event(1, of=TaskEvent, messages=[Message.user("Hi")], model="m", agent_name="a"), working(2)]


def working(seq: int, attempt: int = 1) -> Event:
    after = seq - 1 if attempt > 1 else None
    return event(seq, attempt, of=StatusUpdateEvent, state="working", resumed=attempt > 1, after_seq=after)


def final(seq: int, attempt: int = 1, state: str = "completed") -> Event:
    return event(seq, attempt, of=StatusUpdateEvent, state=state, final=True)


class Written:
    """A log with a run in it, and what its followers have seen."""

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
    """Reads a stream in a task of its own."""

    def __init__(self, stream: Any) -> None:
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for event in stream:
            self.events.append(event)

    @property
    def seen(self) -> list[Any]:
        """The numbers of the events, and what gaps there are."""
        return [event.reason if isinstance(event, GapEvent) else event.seq for event in self.events]


@pytest.fixture
def written() -> Written:
    return Written()


async def test_a_follower_gets_what_is_there_then_what_comes_up_to_the_end(written: Written) -> None:
    await written.write(*begun())
    reader, late = written.follow(), written.follow("run/1.1.0")
    await run_ready_tasks()
    assert (reader.seen, late.seen) == ([1, 2], [2])

    await written.write(event(3), event(4))
    assert (reader.seen, late.seen) == ([1, 2, 3, 4], [2, 3, 4])

    await written.write(final(5))
    await asyncio.gather(reader.task, late.task)
    assert reader.events == written.events
    assert late.seen == [2, 3, 4, 5]


async def test_a_cursor_of_a_transient_event_goes_on_behind_the_durable_one_before_it(written: Written) -> None:
    await written.write(*begun(), event(3), final(4))
    reader = written.follow("run/1.2.17")
    await reader.task

    assert reader.seen == [3, 4]


async def test_following_goes_on_into_a_new_attempt_that_has_begun(written: Written) -> None:
    await written.write(*begun(), final(3, state="canceled"), working(4, 2))
    reader, late = written.follow(), written.follow("run/1.3.0")
    await written.write(event(5, 2), final(6, 2))
    await asyncio.gather(reader.task, late.task)

    assert (reader.seen, late.seen) == ([1, 2, 3, 4, 5, 6], [4, 5, 6])


@pytest.mark.parametrize("cursor", ["run/1.4.0", "run/1.7.0", "run/1.3.2"])
async def test_a_cursor_in_a_lost_attempt_gets_a_gap_first_and_then_all_of_the_new_one(
    written: Written, cursor: str
) -> None:
    # The first attempt was as far as 1.7.0, but a crash left no more of it than 1.3.0.
    await written.write(*begun(), event(3))
    await written.write(*[working(4, 2), event(5, 2), event(6, 2), event(7, 2), final(8, 2)])
    reader = written.follow(cursor)
    await reader.task

    assert reader.seen == ["lost-attempt", 4, 5, 6, 7, 8]
    gap = reader.events[0]
    assert isinstance(gap, GapEvent)
    assert (gap.after, gap.task_id, gap.context_id, gap.attempt) == (cursor, "run", "c", 2)


async def test_a_cursor_of_an_older_attempt_that_was_not_lost_gets_no_gap(written: Written) -> None:
    await written.write(*begun(), event(3), working(4, 2), event(5, 2), working(6, 3), final(7, 3))
    for cursor, seen in [("run/1.2.0", [3, 4, 5, 6, 7]), ("run/1.3.0", [4, 5, 6, 7]), ("run/2.5.0", [6, 7])]:
        reader = written.follow(cursor)
        await reader.task
        assert reader.seen == seen
    lost = written.follow("run/2.6.0")
    await lost.task
    assert lost.seen == ["lost-attempt", 6, 7]


async def test_a_reader_that_is_ahead_of_the_log_gets_no_event_twice(written: Written) -> None:
    # It read the run itself as far as 1.5.0 before the log had it.
    await written.write(*begun(), event(3))
    reader = written.follow("run/1.5.0")
    await run_ready_tasks()
    await written.write(event(4), event(5))
    assert reader.seen == []
    await written.write(event(6), final(7))
    await reader.task

    assert reader.seen == [6, 7]


async def test_a_reader_that_was_ahead_of_the_log_hears_that_what_it_has_was_lost(written: Written) -> None:
    await written.write(*begun(), event(3))
    reader = written.follow("run/1.6.0")
    await run_ready_tasks()
    await written.write(event(4), working(5, 2), final(6, 2))
    await reader.task

    assert reader.seen == ["lost-attempt", 5, 6]


@pytest.mark.parametrize("cursor", ["other/1.2.0", "run/1.9.0", "run/2.3.0", "run/0.2.0"])
async def test_a_cursor_that_is_none_of_this_run_gets_a_gap_and_then_everything(written: Written, cursor: str) -> None:
    await written.write(*begun(), event(3), final(4))
    reader = written.follow(cursor)
    await reader.task

    assert reader.seen == ["unknown-cursor", 1, 2, 3, 4]


async def test_what_is_no_cursor_is_refused_unless_a_client_sent_it(written: Written) -> None:
    await written.write(*begun(), final(3))
    with pytest.raises(ConfigurationError, match=r"a cursor must have the form .* got '17'"):
        written.follow("17")
    reader = written.follow("17", strict=False)
    await reader.task

    assert reader.seen == ["unknown-cursor", 1, 2, 3]


async def test_events_that_the_log_has_dropped_are_a_gap(written: Written) -> None:
    class Trimmed(MemoryEventLog):
        """A log that has no more of the beginning of its runs."""

        async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
            return [event for event in await super().read(task_id, after_seq=after_seq) if event.seq > 3]

        async def follow(self, task_id: str, *, after_seq: int = 0, **options: Any) -> AsyncIterator[Event]:
            async for event in super().follow(task_id, after_seq=after_seq, **options):
                if event.seq > 3:
                    yield event

    written.log = Trimmed()
    await written.write(*begun(), event(3), event(4), final(5))
    for cursor, seen, count in [(None, ["trimmed", 4, 5], 3), ("run/1.1.0", ["trimmed", 4, 5], 2)]:
        reader = written.follow(cursor)
        await reader.task
        assert reader.seen == seen
        assert reader.events[0].count == count  # type: ignore[attr-defined]
    for cursor, seen in [("run/1.3.0", [4, 5]), ("run/1.4.0", [5])]:
        reader = written.follow(cursor)
        await reader.task
        assert reader.seen == seen


async def test_a_run_that_nobody_knows_cannot_be_followed() -> None:
    for after in (None, "run/1.1.0"):
        with pytest.raises(UnknownRun, match="run"):
            await follow(MemoryEventLog(), "run", after=after)


async def test_a_follower_that_leaves_stops_reading(written: Written) -> None:
    await written.write(*begun())
    events = aiter(written_events := follow(written.log, "run"))
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    await run_ready_tasks()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert written_events is not None


async def test_views_and_server_events_work_on_what_is_followed(written: Written) -> None:
    await written.write(*begun(), event(3), final(4))
    names = [each.name async for each in follow(written.log, "run").pipe(op.of_type(CustomEvent))]
    sent = [frame async for frame in follow(written.log, "run", after="other/1.1.0").sse()]

    assert names == ["note 3"]
    kinds = [json.loads(frame.split(b"data: ")[1])["kind"] for frame in sent]
    assert kinds == ["gap", "task", "status-update", "custom", "status-update"]
    assert b"id: run/1.3.0\n" in sent[3]


def test_a_live_run_is_followed_to_its_end_with_every_durable_event() -> None:
    @tool
    async def work(n: int) -> int:
        """Takes a second."""
        await asyncio.sleep(1)
        return n

    log = MemoryEventLog()
    with virtual_time() as time:
        model = ScriptedModel([call("work", n=1), call("work", n=2)], frames("--It is--done.|", 0.25))
        run = Agent(model, tools=[work], log=log).run("Go")

        async def watched() -> tuple[list[Event], list[Event], list[Event]]:
            live = asyncio.create_task(collect(run))
            await asyncio.sleep(0.5)
            early = asyncio.create_task(_all(follow(log, run.task_id)))
            await asyncio.sleep(0.7)
            late = asyncio.create_task(_all(follow(log, run.task_id, after=(await live_so_far())[-1].cursor)))
            return await live, await early, await late

        async def live_so_far() -> list[Event]:
            return list(await log.read(run.task_id))

        live, early, late = time.run(watched())

    durable = [event for event in live if event.durable]
    assert early == durable
    assert late == durable[len(durable) - len(late) :]
    assert 0 < len(late) < len(durable)


async def _all(stream: Any) -> list[Event]:
    return [event async for event in stream]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4),
    cut=st.integers(0, 12),
    data=st.data(),
)
def test_whatever_crashed_a_reader_that_comes_back_has_the_whole_run_in_order(
    lengths: list[tuple[int, int]], cut: int, data: st.DataObject
) -> None:
    """Attempts of some length, each with a lost end; a reader saw a part of one, and follows the rest."""
    kept: list[Event] = begun()[:1]
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
    cut = min(cut, len(kept))

    async def scenario() -> Reader:
        written = Written()
        await written.write(*kept[: max(cut, 1)])
        reader = written.follow(had[-1].cursor)
        await run_ready_tasks()
        for each in kept[max(cut, 1) :]:
            await written.write(each)
        await reader.task
        return reader

    reader = asyncio.run(scenario())

    gaps = [each for each in reader.events if isinstance(each, GapEvent)]
    got = [each for each in reader.events if not isinstance(each, GapEvent)]
    first = got[0].seq if got else len(kept) + 1
    # What it kept of before, up to where the gap says that it goes on, and what it got: the whole run.
    assert [*had[: first - 1], *got] == kept
    if gaps:
        assert isinstance(reader.events[0], GapEvent)
    else:
        assert had == kept[:at]


async def test_until_the_end_a_follower_goes_on_over_pauses_and_attempts(written: Written) -> None:
    await written.write(*begun(), final(3, state="input-required"))
    attempt, whole = written.follow(), written.follow(until="end")
    await attempt.task
    await run_ready_tasks()
    assert not whole.task.done()

    await written.write(working(4, 2), final(5, 2))
    await whole.task
    assert (attempt.seen, whole.seen) == ([1, 2, 3], [1, 2, 3, 4, 5])


async def test_a_follower_gets_deltas_behind_its_cursor_where_the_log_keeps_them(written: Written) -> None:
    written.log = MemoryEventLog(keep_deltas=True)
    deltas = [event(2, of=ContentDeltaEvent, sub=sub, delta="a") for sub in (1, 2, 3)]
    await written.log.append("run", [*begun(), *deltas, event(3), final(4)], expected_seq=0)
    reader, plain = written.follow("run/1.2.1", deltas=True), written.follow("run/1.2.1")
    await asyncio.gather(reader.task, plain.task)

    assert [(each.seq, each.sub) for each in reader.events] == [(2, 2), (2, 3), (3, 0), (4, 0)]
    assert plain.seen == [3, 4]


def test_a_follower_ends_with_the_attempt_or_with_the_run(written: Written) -> None:
    with pytest.raises(ConfigurationError, match="until must be 'attempt' or 'end', got 'later'"):
        written.follow(until="later")
