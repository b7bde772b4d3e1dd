"""Checks for following runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.protocol.messages import ErrorInfo
from rxloop.testing.event_log_contract.toolkit import (
    ENDS,
    SECONDS,
    Check,
    Follower,
    MakeLog,
    SharedCheck,
    begun,
    check,
    end,
    equal,
    new_log,
    note,
    shared,
    status,
    wait_for,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def a_follower_gets_what_is_there_and_then_what_comes(log: EventLog) -> None:
    """The stream includes existing and new events, and ends with the final event."""
    await log.append("run", begun(), expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2)

    await log.append("run", [note(3), note(4)], expected_seq=2)
    await follower.sees(1, 2, 3, 4)

    await log.append("run", [end(5)], expected_seq=4)
    await wait_for(follower)
    equal(follower.seen, [1, 2, 3, 4, 5])


@check(CHECKS)
async def a_follower_begins_after_its_cursor(log: EventLog) -> None:
    """This includes cursors that are ahead of the log."""
    await log.append("run", [*begun(), note(3)], expected_seq=0)
    follower, ahead = Follower(log, after_seq=2), Follower(log, after_seq=4)

    await log.append("run", [note(4), end(5, "failed")], expected_seq=3)
    await wait_for(follower, ahead)

    equal(follower.seen, [3, 4, 5])
    equal(ahead.seen, [5])


@check(CHECKS)
async def events_between_two_reads_are_neither_lost_nor_doubled(log: EventLog) -> None:
    """Events appended while a follower handles an event are delivered next."""
    await log.append("run", begun(), expected_seq=0)
    seen: list[int] = []

    async with aclosing(cast(Any, log.follow("run"))) as events:
        async for event in events:
            seen.append(event.seq)
            if event.seq < 6:
                await log.append("run", [note(event.seq + 2)], expected_seq=event.seq + 1)
            elif event.seq == 6:
                await log.append("run", [end(8)], expected_seq=7)

    equal(seen, [1, 2, 3, 4, 5, 6, 7, 8])


@CHECKS.append
async def following_ends_with_the_attempt_whatever_its_state(make_log: MakeLog) -> None:
    """This also applies to followers without new events."""
    for state in ENDS:
        async with new_log(make_log) as log:
            await log.append("run", [*begun(), end(3, state)], expected_seq=0)

            whole, nothing_new = Follower(log), Follower(log, after_seq=3)
            await wait_for(whole, nothing_new)

            equal(whole.seen, [1, 2, 3])
            equal(nothing_new.seen, [])


@check(CHECKS)
async def following_goes_on_into_an_attempt_that_has_begun(log: EventLog) -> None:
    """Streams continue if a newer attempt has already started."""
    await log.append("run", [*begun(), end(3, "canceled")], expected_seq=0)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3)], expected_seq=3)
    follower = Follower(log)
    await follower.sees(1, 2, 3, 4)

    await log.append("run", [end(5, attempt=2)], expected_seq=4)
    await wait_for(follower)

    equal(follower.seen, [1, 2, 3, 4, 5])


@check(CHECKS)
async def following_until_the_end_goes_on_over_pauses_and_attempts(log: EventLog) -> None:
    """With `until="end"`, the stream ends only after a completed or failed run."""
    await log.append("run", [*begun(), end(3, "input-required")], expected_seq=0)
    follower, ahead = Follower(log, until="end"), Follower(log, after_seq=9, until="end")
    await follower.sees(1, 2, 3)

    again = [status(4, "working", attempt=2, resumed=True, after_seq=3), end(5, "canceled", attempt=2)]
    await log.append("run", again, expected_seq=3)
    await follower.sees(1, 2, 3, 4, 5)
    equal(follower.task.done(), False)

    await log.append("run", [status(6, "working", attempt=3), end(7, "failed")], expected_seq=5)
    await wait_for(follower, ahead)
    equal(follower.seen, [1, 2, 3, 4, 5, 6, 7])
    equal(ahead.seen, [])


@check(CHECKS)
async def following_until_the_end_ends_with_a_run_whose_questions_were_dropped(log: EventLog) -> None:
    """Such runs cannot be resumed, so the stream ends for current and later followers."""
    await log.append("run", [*begun(), end(3, "input-required")], expected_seq=0)
    follower = Follower(log, until="end")
    await follower.sees(1, 2, 3)

    error = ErrorInfo(code="superseded", message="the later run r dropped its questions")
    last = end(5, "canceled", attempt=2, reason="superseded", error=error)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3), last], expected_seq=3)
    late, ahead = Follower(log, until="end"), Follower(log, after_seq=5, until="end")
    await wait_for(follower, late, ahead)
    equal(follower.seen, [1, 2, 3, 4, 5])
    equal(late.seen, [1, 2, 3, 4, 5])
    equal(ahead.seen, [])


@check(CHECKS)
async def the_end_of_a_nested_run_does_not_end_a_follower(log: EventLog) -> None:
    """The run's record is also unaffected."""
    nested = end(3, task_id="child", parent_task_id="run")
    await log.append("run", [*begun(), nested], expected_seq=0)
    follower = Follower(log)
    await follower.sees(1, 2, 3)
    equal(follower.task.done(), False)
    equal([record.state for record in await log.list_runs()], ["working"])

    await log.append("run", [end(4)], expected_seq=3)
    await wait_for(follower)

    equal(follower.seen, [1, 2, 3, 4])


@check(CHECKS)
async def several_followers_each_get_everything(log: EventLog) -> None:
    """Cancelling a follower does not affect other followers."""
    await log.append("run", begun(), expected_seq=0)
    leaver, *followers = [Follower(log) for _ in range(4)]
    for follower in (leaver, *followers):
        await follower.sees(1, 2)

    leaver.task.cancel()
    await asyncio.wait([leaver.task])
    await log.append("run", [note(3), end(4)], expected_seq=2)
    await wait_for(*followers)

    equal(leaver.task.cancelled(), True)
    equal(leaver.seen, [1, 2])
    equal([follower.seen for follower in followers], [[1, 2, 3, 4]] * 3)


@check(CHECKS)
async def a_reader_may_stop_in_the_middle_and_come_back(log: EventLog) -> None:
    """The `seq` of the last event is used as the cursor."""
    await log.append("run", [*begun(), end(3)], expected_seq=0)

    async with aclosing(cast(Any, log.follow("run"))) as events:
        first = await anext(events)
    follower = Follower(log, after_seq=first.seq)
    await wait_for(follower)

    equal(follower.seen, [2, 3])


@check(CHECKS)
async def runs_do_not_mix(log: EventLog) -> None:
    """Concurrent runs only receive their own events."""

    async def collect(log: EventLog, name: str) -> list[str]:
        return [event.task_id async for event in log.follow(name)]

    async def run(log: EventLog, name: str) -> list[str]:
        events = [*begun(task_id=name), note(3, task_id=name), end(4, task_id=name)]
        await log.append(name, events[:1], expected_seq=0)
        follower = asyncio.create_task(collect(log, name))
        for seq, event in enumerate(events[1:], start=1):
            await log.append(name, [event], expected_seq=seq)
            await asyncio.sleep(0)
        return await follower

    found = await asyncio.gather(*(run(log, name) for name in "abc"))
    equal(found, [["a"] * 4, ["b"] * 4, ["c"] * 4])


@check(CHECKS, keep_deltas=True)
async def a_follower_gets_transient_events_on_demand(log: EventLog) -> None:
    """Transient events following `after_seq` are repeated."""
    deltas = [ContentDeltaEvent(seq=2, sub=sub, delta="a") for sub in (1, 2, 3)]
    await log.append("run", [*begun(), *deltas[:1]], expected_seq=0)
    whole, durable = Follower(log, deltas=True), Follower(log)
    later = Follower(log, after_seq=2, deltas=True)
    await whole.sees(1, 2, 2)

    await log.append("run", deltas[1:], expected_seq=2)
    await whole.sees(1, 2, 2, 2, 2)
    await log.append("run", [note(3), end(4)], expected_seq=2)
    await wait_for(whole, durable, later)

    equal(whole.seen, [1, 2, 2, 2, 2, 3, 4])
    equal(durable.seen, [1, 2, 3, 4])
    equal(later.seen, [2, 2, 2, 3, 4])


@shared(SHARED)
async def what_one_writes_the_other_follows(one: EventLog, two: EventLog) -> None:
    """This includes attempts written by another log object."""
    await one.append("run", begun(), expected_seq=0)
    followers = [Follower(log, until="end") for log in (one, two, two)]
    for follower in followers:
        await follower.sees(1, 2)
    await one.append("run", [note(3), end(4, "canceled")], expected_seq=2)
    for follower in followers:
        await follower.sees(1, 2, 3, 4)
    await two.append("run", [status(5, "working", attempt=2), end(6, attempt=2)], expected_seq=4)
    await wait_for(*followers)
    equal([follower.seen for follower in followers], [[1, 2, 3, 4, 5, 6]] * 3)


@shared(SHARED)
async def transient_events_come_behind_their_durable_one(one: EventLog, two: EventLog) -> None:
    """Transient events may be lost, but are never duplicated or delivered before their durable event."""
    if not (one.takes_deltas and two.takes_deltas):
        return
    await one.append("run", begun(), expected_seq=0)
    seen: list[Event] = []
    reading = asyncio.create_task(_collect(two, seen))
    sub = 0
    async with asyncio.timeout(SECONDS):
        # Events can be lost while the other log has no subscription yet.
        while not any(event.sub for event in seen):
            sub += 1
            await one.append("run", [ContentDeltaEvent(seq=2, sub=sub, delta=f"{sub} ")], expected_seq=2)
            await asyncio.sleep(0.01)
    for seq in range(3, 9):
        deltas = [ContentDeltaEvent(seq=seq, sub=at, delta="x") for at in (1, 2)]
        await one.append("run", [note(seq), *deltas], expected_seq=seq - 1)
    await one.append("run", [end(9)], expected_seq=8)
    async with asyncio.timeout(SECONDS):
        await reading
    places = [(event.seq, event.sub) for event in seen]
    equal(places, sorted({*places}))
    equal([event.seq for event in seen if event.durable], [*range(1, 10)])


async def _collect(log: EventLog, into: list[Event]) -> None:
    async for event in log.follow("run", deltas=True):
        into.append(event)  # noqa: PERF401 (it is looked at meanwhile)
