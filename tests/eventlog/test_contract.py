"""What every event log must do; a new one is added to `make_log` and has to pass all of it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import ConflictError, EventLogError, UnknownRun
from rxloop.eventlog import MemoryEventLog, SqliteEventLog
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    State,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message, ToolCall

BuiltIn = MemoryEventLog | SqliteEventLog


class MakeLog(Protocol):
    """Makes one of the logs."""

    def __call__(self, *, keep_deltas: bool = False) -> BuiltIn: ...


@pytest.fixture(params=["memory", "sqlite"], scope="session")
def make_log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeLog:
    """Makes a new, empty log at each call."""

    def sqlite(*, keep_deltas: bool = False) -> SqliteEventLog:
        return SqliteEventLog(tmp_path_factory.mktemp("log") / "runs.db", keep_deltas=keep_deltas)

    return MemoryEventLog if request.param == "memory" else sqlite


@pytest.fixture
async def log(make_log: MakeLog) -> AsyncIterator[BuiltIn]:
    log = make_log()
    yield log
    await log.aclose()


def task(seq: int = 1, **fields: Any) -> TaskEvent:
    return TaskEvent(seq=seq, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="helper", **fields)


def note(seq: int, **fields: Any) -> Event:
    return CustomEvent(seq=seq, name=f"note {seq}", **fields)


def status(seq: int, state: State, *, final: bool = False, **fields: Any) -> Event:
    return StatusUpdateEvent(seq=seq, state=state, final=final, **fields)


def begun(*, task_id: str = "run") -> list[Event]:
    return [task(task_id=task_id), status(2, "working", task_id=task_id)]


def begun_at(timestamp: int) -> list[Event]:
    return [task(timestamp=timestamp), status(2, "working", timestamp=timestamp)]


class Follower:
    """Reads a run in a task of its own."""

    def __init__(self, log: BuiltIn, task_id: str = "run", after_seq: int = 0, **options: Any) -> None:
        self.seen: list[int] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._read(log.follow(task_id, after_seq=after_seq, **options)))

    async def _read(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.seen.append(event.seq)
            self._more.set()

    async def sees(self, *expected: int) -> None:
        """Wait until that is what it has seen."""
        async with asyncio.timeout(10):
            while self.seen != [*expected]:
                self._more.clear()
                await self._more.wait()


async def test_what_was_appended_is_read_back_in_order(log: BuiltIn) -> None:
    call = ToolCall(id="1", name="weather", arguments={"city": "Ålesund"})
    first: list[Event] = [
        task(context_id="c", task_id="run", timestamp=1_700_000_000_123),
        status(2, "working", metadata={"a": [1, None]}),
    ]
    second: list[Event] = [
        ContentCompleteEvent(seq=3, step="1", tool_calls=[call], provider_state={"signed": "x"}),
        ToolCompleteEvent(seq=4, call=call, success=True, result={"c": 20.5}, content="20.5", hidden=True),
    ]

    await log.append("run", first, expected_seq=0)
    await log.append("run", second, expected_seq=2)

    assert list(await log.read("run")) == first + second
    assert [event.seq for event in await log.read("run", after_seq=2)] == [3, 4]
    assert list(await log.read("run", after_seq=4)) == []


async def test_an_unknown_run_is_an_error_that_names_it(log: BuiltIn) -> None:  # L91
    with pytest.raises(UnknownRun, match="nowhere"):
        await log.read("nowhere")
    with pytest.raises(UnknownRun, match="nowhere"):
        await anext(log.follow("nowhere"))


@pytest.mark.parametrize("expected_seq", [0, 1, 3])
async def test_a_writer_that_expects_another_last_event_is_refused(log: BuiltIn, expected_seq: int) -> None:
    await log.append("run-7", begun(), expected_seq=0)

    with pytest.raises(ConflictError) as refusal:
        await log.append("run-7", [note(expected_seq + 1)], expected_seq=expected_seq)

    assert "run-7" in str(refusal.value)
    assert {str(expected_seq), "2"} <= set(re.findall(r"\d+", str(refusal.value)))
    assert len(await log.read("run-7")) == 2


async def test_of_two_writers_at_once_one_wins_and_the_other_is_refused(log: BuiltIn) -> None:
    await log.append("run", begun(), expected_seq=0)

    outcomes = await asyncio.gather(
        log.append("run", [note(3, task_id="mine")], expected_seq=2),
        log.append("run", [note(3, task_id="theirs")], expected_seq=2),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [ConflictError]
    assert len(await log.read("run")) == 3


async def test_of_two_writers_with_the_same_bytes_one_wins_and_the_other_is_refused(log: BuiltIn) -> None:
    await log.append("run", begun(), expected_seq=0)

    outcomes = await asyncio.gather(
        log.append("run", [note(3, timestamp=1)], expected_seq=2, owner="mine"),
        log.append("run", [note(3, timestamp=1)], expected_seq=2, owner="theirs"),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [ConflictError]
    assert len(await log.read("run")) == 3


async def test_of_two_writers_that_begin_a_run_with_the_same_bytes_one_is_refused(log: BuiltIn) -> None:
    await log.append("run", begun_at(1), expected_seq=0, owner="mine")

    with pytest.raises(ConflictError):
        await log.append("run", begun_at(1), expected_seq=0, owner="theirs")


async def test_a_writer_that_did_not_hear_of_its_batch_appends_it_again_and_it_is_there_once(log: BuiltIn) -> None:
    await log.append("run", begun_at(1), expected_seq=0, owner="mine")
    batch = [note(3, timestamp=1), note(4, timestamp=1)]
    await log.append("run", batch, expected_seq=2, owner="mine")

    await log.append("run", batch, expected_seq=2, owner="mine")
    await log.append("run", [*batch, note(5)], expected_seq=2, owner="mine")

    assert [event.seq for event in await log.read("run")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch", [[note(3, timestamp=2)], [note(3, timestamp=1), note(4)], []])
async def test_what_is_there_in_other_words_is_a_conflict_for_its_own_writer_too(
    log: BuiltIn, batch: list[Event]
) -> None:
    await log.append("run", begun_at(1), expected_seq=0, owner="mine")
    await log.append("run", [note(3, timestamp=1), note(4, timestamp=1)], expected_seq=2, owner="mine")

    if batch:
        with pytest.raises(ConflictError):
            await log.append("run", batch, expected_seq=2, owner="mine")
    with pytest.raises(ConflictError):
        await log.append("run", [note(6)], expected_seq=5, owner="mine")

    assert [event.timestamp for event in await log.read("run", after_seq=2)] == [1, 1]


@pytest.mark.parametrize("owner", ["", "theirs"])
async def test_what_is_there_is_a_conflict_for_whoever_is_not_its_owner(log: BuiltIn, owner: str) -> None:
    await log.append("run", begun_at(1), expected_seq=0)
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, owner="" if not owner else "mine")

    with pytest.raises(ConflictError):
        await log.append("run", [note(3, timestamp=1)], expected_seq=2, owner=owner)


async def test_the_owner_of_a_run_is_the_one_of_its_last_batch(log: BuiltIn) -> None:
    await log.append("run", begun_at(1), expected_seq=0, owner="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, owner="second")

    with pytest.raises(ConflictError):
        await log.append("run", begun_at(1), expected_seq=0, owner="first")
    await log.append("run", [note(3, timestamp=1)], expected_seq=2, owner="second")

    assert len(await log.read("run")) == 3


async def test_transient_events_that_are_there_already_are_there_once(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    batch = [*begun_at(1), ContentDeltaEvent(seq=2, sub=1, delta="a", timestamp=1)]
    await log.append("run", batch, expected_seq=0, owner="mine")

    await log.append("run", batch, expected_seq=0, owner="mine")
    await log.append("run", [*batch, note(3)], expected_seq=0, owner="mine")

    assert [(event.seq, event.sub) for event in await log.read("run", deltas=True)] == [(1, 0), (2, 0), (2, 1), (3, 0)]
    await log.aclose()


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ([note(3), note(5)], "5"),
        ([note(3), note(3)], "3"),
        ([note(4)], "4"),
        ([note(3), ContentDeltaEvent(seq=4, delta="a")], "content-delta"),
    ],
)
async def test_a_batch_with_a_bad_event_is_refused_as_a_whole(log: BuiltIn, batch: Sequence[Event], named: str) -> None:
    await log.append("run", begun(), expected_seq=0)

    with pytest.raises(EventLogError, match=named):
        await log.append("run", batch, expected_seq=2)

    assert [event.seq for event in await log.read("run")] == [1, 2]
    await log.append("run", [note(3)], expected_seq=2)


async def test_a_refused_first_batch_leaves_no_run_behind(log: BuiltIn) -> None:
    with pytest.raises(EventLogError):
        await log.append("run", [task(), note(3)], expected_seq=0)

    assert await log.runs() == []


async def test_an_empty_batch_changes_nothing(log: BuiltIn) -> None:
    await log.append("run", [], expected_seq=0)
    assert await log.runs() == []

    await log.append("run", begun(), expected_seq=0)
    await log.append("run", [], expected_seq=2)
    assert len(await log.read("run")) == 2


async def test_a_caller_that_changes_its_list_does_not_change_the_log(log: BuiltIn) -> None:
    batch = begun()
    await log.append("run", batch, expected_seq=0)

    batch.clear()

    assert len(await log.read("run")) == 2


async def test_a_follower_gets_what_is_there_and_then_what_comes(log: BuiltIn) -> None:  # L132
    await log.append("run", begun(), expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2)

    await log.append("run", [note(3), note(4)], expected_seq=2)
    await follower.sees(1, 2, 3, 4)

    await log.append("run", [status(5, "completed", final=True)], expected_seq=4)
    await follower.task
    assert follower.seen == [1, 2, 3, 4, 5]


async def test_a_follower_begins_behind_its_cursor(log: BuiltIn) -> None:  # L132
    await log.append("run", [*begun(), note(3)], expected_seq=0)
    follower, ahead = Follower(log, after_seq=2), Follower(log, after_seq=4)

    await log.append("run", [note(4), status(5, "failed", final=True)], expected_seq=3)
    await asyncio.gather(follower.task, ahead.task)

    assert follower.seen == [3, 4, 5]
    assert ahead.seen == [5]


async def test_events_that_come_between_two_reads_are_neither_lost_nor_doubled(log: BuiltIn) -> None:  # L132
    await log.append("run", begun(), expected_seq=0)
    seen: list[int] = []

    async with aclosing(cast(Any, log.follow("run"))) as events:
        async for event in events:
            seen.append(event.seq)
            if event.seq < 6:
                await log.append("run", [note(event.seq + 2)], expected_seq=event.seq + 1)
            elif event.seq == 6:
                await log.append("run", [status(8, "completed", final=True)], expected_seq=7)

    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("state", ["completed", "failed", "canceled", "input-required", "auth-required"])
async def test_following_ends_with_the_attempt_whatever_its_state(log: BuiltIn, state: State) -> None:
    await log.append("run", [*begun(), status(3, state, final=True)], expected_seq=0)

    whole, nothing_new = Follower(log), Follower(log, after_seq=3)
    await asyncio.gather(whole.task, nothing_new.task)

    assert whole.seen == [1, 2, 3]
    assert nothing_new.seen == []


async def test_following_a_resumed_run_goes_on_into_the_new_attempt(log: BuiltIn) -> None:
    await log.append("run", [*begun(), status(3, "canceled", final=True)], expected_seq=0)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3)], expected_seq=3)
    follower = Follower(log)
    await follower.sees(1, 2, 3, 4)

    await log.append("run", [status(5, "completed", final=True, attempt=2)], expected_seq=4)
    await follower.task

    assert follower.seen == [1, 2, 3, 4, 5]


async def test_following_until_the_end_goes_on_over_pauses_and_attempts(log: BuiltIn) -> None:
    await log.append("run", [*begun(), status(3, "input-required", final=True)], expected_seq=0)
    follower, behind = Follower(log, until="end"), Follower(log, after_seq=9, until="end")
    await follower.sees(1, 2, 3)

    again = [status(4, "working", attempt=2, resumed=True, after_seq=3), status(5, "canceled", final=True, attempt=2)]
    await log.append("run", again, expected_seq=3)
    await follower.sees(1, 2, 3, 4, 5)
    assert not follower.task.done()

    await log.append("run", [status(6, "working", attempt=3), status(7, "failed", final=True)], expected_seq=5)
    async with asyncio.timeout(10):
        await asyncio.gather(follower.task, behind.task)
    assert follower.seen == [1, 2, 3, 4, 5, 6, 7]
    assert behind.seen == []


async def test_a_follower_gets_the_transient_events_on_demand(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    deltas = [ContentDeltaEvent(seq=2, sub=sub, delta="a") for sub in (1, 2, 3)]
    await log.append("run", [*begun(), *deltas[:1]], expected_seq=0)
    whole, durable = Follower(log, deltas=True), Follower(log)
    later = Follower(log, after_seq=2, deltas=True)
    await whole.sees(1, 2, 2)

    await log.append("run", deltas[1:], expected_seq=2)
    await whole.sees(1, 2, 2, 2, 2)
    await log.append("run", [note(3), status(4, "completed", final=True)], expected_seq=2)
    await asyncio.gather(whole.task, durable.task, later.task)

    assert whole.seen == [1, 2, 2, 2, 2, 3, 4]
    assert durable.seen == [1, 2, 3, 4]
    assert later.seen == [2, 2, 2, 3, 4]
    await log.aclose()


async def test_the_end_of_a_nested_run_ends_no_follower(log: BuiltIn) -> None:  # L10
    nested = status(3, "completed", final=True, task_id="child", parent_task_id="run")
    await log.append("run", [*begun(), nested], expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2, 3)
    assert not follower.task.done()
    assert [record.state for record in await log.runs()] == ["working"]

    await log.append("run", [status(4, "completed", final=True)], expected_seq=3)
    await follower.task

    assert follower.seen == [1, 2, 3, 4]


async def test_several_followers_each_get_everything(log: BuiltIn) -> None:
    await log.append("run", begun(), expected_seq=0)
    followers = [Follower(log) for _ in range(3)]
    for follower in followers:
        await follower.sees(1, 2)

    await log.append("run", [note(3), status(4, "completed", final=True)], expected_seq=2)
    await asyncio.gather(*(follower.task for follower in followers))

    assert [follower.seen for follower in followers] == [[1, 2, 3, 4]] * 3


async def test_a_follower_that_leaves_disturbs_nobody(log: BuiltIn) -> None:
    await log.append("run", begun(), expected_seq=0)
    leaver, stayer = Follower(log), Follower(log)
    await leaver.sees(1, 2)
    await stayer.sees(1, 2)

    leaver.task.cancel()
    await asyncio.wait([leaver.task])
    await log.append("run", [status(3, "completed", final=True)], expected_seq=2)
    await stayer.task

    assert leaver.task.cancelled()
    assert leaver.seen == [1, 2]
    assert stayer.seen == [1, 2, 3]


async def test_a_reader_may_stop_in_the_middle_and_come_back(log: BuiltIn) -> None:
    await log.append("run", [*begun(), status(3, "completed", final=True)], expected_seq=0)

    async with aclosing(cast(Any, log.follow("run"))) as events:
        first = await anext(events)
    follower = Follower(log, after_seq=first.seq)
    await follower.task

    assert follower.seen == [2, 3]


async def test_runs_do_not_cross(log: BuiltIn) -> None:  # L138
    async def run(name: str) -> list[str]:
        events = [*begun(task_id=name), note(3, task_id=name), status(4, "completed", final=True, task_id=name)]
        await log.append(name, events[:1], expected_seq=0)
        follower = asyncio.create_task(collect(name))
        for seq, event in enumerate(events[1:], start=1):
            await log.append(name, [event], expected_seq=seq)
            await asyncio.sleep(0)
        return await follower

    async def collect(name: str) -> list[str]:
        return [event.task_id async for event in log.follow(name)]

    assert await asyncio.gather(run("a"), run("b"), run("c")) == [["a"] * 4, ["b"] * 4, ["c"] * 4]


async def test_a_record_tells_of_a_run_what_its_events_say(log: BuiltIn) -> None:
    await log.append("run", [task(context_id="c", timestamp=1_000)], expected_seq=0)
    assert [record.state for record in await log.runs()] == ["submitted"]

    await log.append("run", [status(2, "working", attempt=1, timestamp=1_010)], expected_seq=1)
    await log.append("run", [status(3, "input-required", final=True, attempt=1, timestamp=1_020)], expected_seq=2)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, timestamp=2_000)], expected_seq=3)
    await log.append("run", [note(5, attempt=2, timestamp=2_010)], expected_seq=4)

    assert list(await log.runs()) == [
        RunRecord(
            task_id="run",
            context_id="c",
            agent_name="helper",
            state="working",
            attempt=2,
            seq=5,
            created=1_000,
            updated=2_010,
        )
    ]


async def test_runs_come_in_the_order_in_which_the_log_got_them_whatever_the_clock_said(log: BuiltIn) -> None:
    for task_id, context_id, timestamp in [("2", "a", 20), ("1", "a", 10), ("3", "b", 15), ("4", "a", 30)]:
        await log.append(task_id, [task(context_id=context_id, timestamp=timestamp)], expected_seq=0)

    assert [record.task_id for record in await log.runs(context_id="a")] == ["2", "1", "4"]
    assert [record.task_id for record in await log.runs()] == ["2", "1", "3", "4"]
    assert [record.task_id for record in await log.runs(unfinished=True)] == ["2", "1", "3", "4"]
    assert await log.runs(context_id="nowhere") == []


async def test_unfinished_runs_are_those_that_can_go_on(log: BuiltIn) -> None:
    ends: list[State] = ["completed", "failed", "canceled", "input-required", "auth-required"]
    for at, state in enumerate(ends):
        events = [task(context_id="c", timestamp=at), status(2, "working"), status(3, state, final=True)]
        await log.append(state, events, expected_seq=0)
    await log.append("working", [task(context_id="c", timestamp=9), status(2, "working")], expected_seq=0)

    unfinished = await log.runs(context_id="c", unfinished=True)

    assert [record.task_id for record in unfinished] == ["canceled", "input-required", "auth-required", "working"]


async def test_a_log_may_be_closed_more_than_once(log: BuiltIn) -> None:
    await log.append("run", begun(), expected_seq=0)

    await log.aclose()
    await log.aclose()


def test_one_log_serves_one_event_loop_after_another(make_log: MakeLog) -> None:
    log = make_log()

    async def first() -> None:
        await log.append("run", begun(), expected_seq=0)
        await Follower(log).sees(1, 2)  # still waits when the loop is closed

    async def second() -> list[int]:
        follower = Follower(log)
        await follower.sees(1, 2)
        await log.append("run", [status(3, "completed", final=True)], expected_seq=2)
        await follower.task
        await log.aclose()
        return follower.seen

    asyncio.run(first())

    assert asyncio.run(second()) == [1, 2, 3]


@given(batches=st.lists(st.integers(1, 4), max_size=8), after_seq=st.integers(0, 12), turns=st.integers(0, 3))
def test_a_follower_sees_what_a_later_read_gives_however_the_batches_fall(
    make_log: MakeLog, batches: list[int], after_seq: int, turns: int
) -> None:
    async def scenario(log: BuiltIn) -> tuple[list[int], list[int]]:
        await log.append("run", begun(), expected_seq=0)
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
        return follower.seen, [event.seq for event in read]

    seen, read = asyncio.run(scenario(make_log()))

    assert seen == read


async def finished(log: BuiltIn, task_id: str, state: State, *, at: int = 0, **fields: Any) -> None:
    events = [
        task(task_id=task_id, timestamp=at),
        ContentDeltaEvent(seq=1, sub=1, delta="a", task_id=task_id),
        status(2, state, final=True, timestamp=at, **fields),
    ]
    await log.append(task_id, events if log.keeps_deltas else [events[0], events[2]], expected_seq=0)


async def test_a_finished_run_can_be_deleted(log: BuiltIn) -> None:
    await finished(log, "old", "completed")
    await finished(log, "new", "completed")

    await log.delete("old")

    assert [record.task_id for record in await log.runs()] == ["new"]
    with pytest.raises(UnknownRun, match="old"):
        await log.read("old")
    with pytest.raises(UnknownRun, match="old"):
        await log.delete("old")


async def test_a_run_that_was_removed_is_no_part_of_its_conversation(log: BuiltIn) -> None:
    for at, task_id in enumerate(["deleted", "trimmed", "new"]):
        events = [
            task(task_id=task_id, context_id="c", timestamp=at),
            status(2, "completed", final=True, timestamp=round(time.time() * 1000) if task_id == "new" else at),
        ]
        await log.append(task_id, events, expected_seq=0)

    await log.delete("deleted")
    assert [record.task_id for record in await log.runs(context_id="c")] == ["trimmed", "new"]
    await log.trim(1_800)
    assert [record.task_id for record in await log.runs(context_id="c")] == ["new"]
    await log.delete("new")
    assert await log.runs(context_id="c") == []


@pytest.mark.parametrize("state", ["canceled", "input-required", "auth-required"])
async def test_a_run_that_can_go_on_is_never_removed(log: BuiltIn, state: State) -> None:  # L94
    await finished(log, "waits", state)
    await log.append("works", begun(task_id="works"), expected_seq=0)

    with pytest.raises(EventLogError, match=f"waits is {state}"):
        await log.delete("waits")
    with pytest.raises(EventLogError, match="works is working"):
        await log.delete("works")

    assert await log.trim(0, states=("completed", "failed", state, "working")) == []
    assert len(await log.runs()) == 2


async def test_trimming_goes_by_age_and_state(log: BuiltIn) -> None:  # L94
    now = round(time.time() * 1000)
    await finished(log, "old", "completed", at=now - 3_600_000)
    await finished(log, "failed", "failed", at=now - 3_600_000)
    await finished(log, "new", "completed", at=now - 60_000)

    assert await log.trim(1_800, states=("completed",)) == ["old"]
    assert [record.task_id for record in await log.runs()] == ["failed", "new"]
    assert await log.trim(1_800) == ["failed"]
    assert await log.trim(1_800) == []


async def test_transient_events_are_kept_on_demand_and_given_on_demand(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    delta = [ContentDeltaEvent(seq=2, sub=at, delta="a", step="1", timestamp=1_000 + at) for at in (1, 2)]
    await log.append("run", [*begun(), *delta], expected_seq=0)
    await log.append("run", [ContentDeltaEvent(seq=2, sub=3, delta="b")], expected_seq=2)
    await log.append("run", [note(3)], expected_seq=2)

    whole = await log.read("run", deltas=True)
    assert [(event.seq, event.sub) for event in whole] == [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)]
    assert list(whole[2:4]) == delta
    assert [event.seq for event in await log.read("run")] == [1, 2, 3]
    assert [event.seq for event in await log.read("run", after_seq=2, deltas=True)] == [3]
    await log.aclose()


async def test_the_transient_events_alone_can_be_trimmed(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    await finished(log, "run", "completed")
    assert len(await log.read("run", deltas=True)) == 3

    assert await log.trim(0, deltas_only=True) == ["run"]

    assert len(await log.read("run", deltas=True)) == 2
    assert await log.trim(0, deltas_only=True) == []
    await log.aclose()


async def test_transient_events_have_to_be_in_order_too(make_log: MakeLog) -> None:
    log = make_log(keep_deltas=True)
    await log.append("run", begun(), expected_seq=0)
    for bad in (ContentDeltaEvent(seq=1, sub=1, delta="a"), ContentDeltaEvent(seq=2, sub=0, delta="a")):
        with pytest.raises(EventLogError, match=r"content-delta has the number"):
            await log.append("run", [bad], expected_seq=2)
    await log.aclose()
