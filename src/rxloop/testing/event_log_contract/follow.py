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
    assert_equal,
    check,
    end,
    new_log,
    note,
    shared_check,
    start_events,
    status,
    wait_for,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def follow_yields_stored_and_new_events(log: EventLog) -> None:
    """Check that the stream contains stored and new events, and ends with the final event."""
    await log.append("run", start_events(), expected_seq=0)
    follower = Follower(log)
    await follower.wait_for_events(1, 2)

    await log.append("run", [note(3), note(4)], expected_seq=2)
    await follower.wait_for_events(1, 2, 3, 4)

    await log.append("run", [end(5)], expected_seq=4)
    await wait_for(follower)
    assert_equal(follower.received, [1, 2, 3, 4, 5])


@check(CHECKS)
async def follow_starts_after_the_cursor(log: EventLog) -> None:
    """Check cursors in the log and ahead of it."""
    await log.append("run", [*start_events(), note(3)], expected_seq=0)
    follower, ahead = Follower(log, after_seq=2), Follower(log, after_seq=4)

    await log.append("run", [note(4), end(5, "failed")], expected_seq=3)
    await wait_for(follower, ahead)

    assert_equal(follower.received, [3, 4, 5])
    assert_equal(ahead.received, [5])


@check(CHECKS)
async def follow_yields_events_appended_between_reads_once(log: EventLog) -> None:
    """Events appended while a follower handles an event are delivered next."""
    await log.append("run", start_events(), expected_seq=0)
    seen: list[int] = []

    async with aclosing(cast(Any, log.follow("run"))) as events:
        async for event in events:
            seen.append(event.seq)
            if event.seq < 6:
                await log.append("run", [note(event.seq + 2)], expected_seq=event.seq + 1)
            elif event.seq == 6:
                await log.append("run", [end(8)], expected_seq=7)

    assert_equal(seen, [1, 2, 3, 4, 5, 6, 7, 8])


@CHECKS.append
async def follow_ends_with_the_attempt_in_any_state(make_log: MakeLog) -> None:
    """Check followers with and without new events."""
    for state in ENDS:
        async with new_log(make_log) as log:
            await log.append("run", [*start_events(), end(3, state)], expected_seq=0)

            complete, nothing_new = Follower(log), Follower(log, after_seq=3)
            await wait_for(complete, nothing_new)

            assert_equal(complete.received, [1, 2, 3])
            assert_equal(nothing_new.received, [])


@check(CHECKS)
async def follow_continues_with_a_started_attempt(log: EventLog) -> None:
    """Streams continue if a newer attempt has already started."""
    await log.append("run", [*start_events(), end(3, "canceled")], expected_seq=0)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3)], expected_seq=3)
    follower = Follower(log)
    await follower.wait_for_events(1, 2, 3, 4)

    await log.append("run", [end(5, attempt=2)], expected_seq=4)
    await wait_for(follower)

    assert_equal(follower.received, [1, 2, 3, 4, 5])


@check(CHECKS)
async def follow_until_the_end_continues_after_pauses(log: EventLog) -> None:
    """With `until="end"`, the stream ends only after a completed or failed run."""
    await log.append("run", [*start_events(), end(3, "input-required")], expected_seq=0)
    follower, ahead = Follower(log, until="end"), Follower(log, after_seq=9, until="end")
    await follower.wait_for_events(1, 2, 3)

    again = [status(4, "working", attempt=2, resumed=True, after_seq=3), end(5, "canceled", attempt=2)]
    await log.append("run", again, expected_seq=3)
    await follower.wait_for_events(1, 2, 3, 4, 5)
    assert_equal(follower.task.done(), False)

    await log.append("run", [status(6, "working", attempt=3), end(7, "failed")], expected_seq=5)
    await wait_for(follower, ahead)
    assert_equal(follower.received, [1, 2, 3, 4, 5, 6, 7])
    assert_equal(ahead.received, [])


@check(CHECKS)
async def follow_until_the_end_ends_when_questions_are_dropped(log: EventLog) -> None:
    """Such runs cannot be resumed, so the stream ends for current and later followers."""
    await log.append("run", [*start_events(), end(3, "input-required")], expected_seq=0)
    follower = Follower(log, until="end")
    await follower.wait_for_events(1, 2, 3)

    error = ErrorInfo(code="superseded", message="the later run r dropped its questions")
    last = end(5, "canceled", attempt=2, reason="superseded", error=error)
    await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3), last], expected_seq=3)
    late, ahead = Follower(log, until="end"), Follower(log, after_seq=5, until="end")
    await wait_for(follower, late, ahead)
    assert_equal(follower.received, [1, 2, 3, 4, 5])
    assert_equal(late.received, [1, 2, 3, 4, 5])
    assert_equal(ahead.received, [])


@check(CHECKS)
async def follow_continues_after_the_end_of_a_nested_run(log: EventLog) -> None:
    """Check the stream and the record of the outer run."""
    nested = end(3, task_id="child", parent_task_id="run")
    await log.append("run", [*start_events(), nested], expected_seq=0)
    follower = Follower(log)
    await follower.wait_for_events(1, 2, 3)
    assert_equal(follower.task.done(), False)
    assert_equal([record.state for record in await log.list_runs()], ["working"])

    await log.append("run", [end(4)], expected_seq=3)
    await wait_for(follower)

    assert_equal(follower.received, [1, 2, 3, 4])


@check(CHECKS)
async def concurrent_followers_receive_all_events(log: EventLog) -> None:
    """Check that cancelling a follower does not affect the others."""
    await log.append("run", start_events(), expected_seq=0)
    leaver, *followers = [Follower(log) for _ in range(4)]
    for follower in (leaver, *followers):
        await follower.wait_for_events(1, 2)

    leaver.task.cancel()
    await asyncio.wait([leaver.task])
    await log.append("run", [note(3), end(4)], expected_seq=2)
    await wait_for(*followers)

    assert_equal(leaver.task.cancelled(), True)
    assert_equal(leaver.received, [1, 2])
    assert_equal([follower.received for follower in followers], [[1, 2, 3, 4]] * 3)


@check(CHECKS)
async def follow_resumes_after_an_interrupted_read(log: EventLog) -> None:
    """Use the `seq` of the last event as the cursor."""
    await log.append("run", [*start_events(), end(3)], expected_seq=0)

    async with aclosing(cast(Any, log.follow("run"))) as events:
        first = await anext(events)
    follower = Follower(log, after_seq=first.seq)
    await wait_for(follower)

    assert_equal(follower.received, [2, 3])


@check(CHECKS)
async def follow_yields_only_events_of_its_run(log: EventLog) -> None:
    """Concurrent runs only receive their own events."""

    async def collect(log: EventLog, name: str) -> list[str]:
        return [event.task_id async for event in log.follow(name)]

    async def run(log: EventLog, name: str) -> list[str]:
        events = [*start_events(task_id=name), note(3, task_id=name), end(4, task_id=name)]
        await log.append(name, events[:1], expected_seq=0)
        follower = asyncio.create_task(collect(log, name))
        for seq, event in enumerate(events[1:], start=1):
            await log.append(name, [event], expected_seq=seq)
            await asyncio.sleep(0)
        return await follower

    found = await asyncio.gather(*(run(log, name) for name in "abc"))
    assert_equal(found, [["a"] * 4, ["b"] * 4, ["c"] * 4])


@check(CHECKS, keep_deltas=True)
async def follow_yields_transient_events_on_demand(log: EventLog) -> None:
    """Transient events following `after_seq` are repeated."""
    deltas = [ContentDeltaEvent(seq=2, sub=sub, delta="a") for sub in (1, 2, 3)]
    await log.append("run", [*start_events(), *deltas[:1]], expected_seq=0)
    complete, durable = Follower(log, deltas=True), Follower(log)
    later = Follower(log, after_seq=2, deltas=True)
    await complete.wait_for_events(1, 2, 2)

    await log.append("run", deltas[1:], expected_seq=2)
    await complete.wait_for_events(1, 2, 2, 2, 2)
    await log.append("run", [note(3), end(4)], expected_seq=2)
    await wait_for(complete, durable, later)

    assert_equal(complete.received, [1, 2, 2, 2, 2, 3, 4])
    assert_equal(durable.received, [1, 2, 3, 4])
    assert_equal(later.received, [2, 2, 2, 3, 4])


@shared_check(SHARED)
async def follow_yields_events_of_another_log(one: EventLog, two: EventLog) -> None:
    """Include an attempt written by another log object."""
    await one.append("run", start_events(), expected_seq=0)
    followers = [Follower(log, until="end") for log in (one, two, two)]
    for follower in followers:
        await follower.wait_for_events(1, 2)
    await one.append("run", [note(3), end(4, "canceled")], expected_seq=2)
    for follower in followers:
        await follower.wait_for_events(1, 2, 3, 4)
    await two.append("run", [status(5, "working", attempt=2), end(6, attempt=2)], expected_seq=4)
    await wait_for(*followers)
    assert_equal([follower.received for follower in followers], [[1, 2, 3, 4, 5, 6]] * 3)


@shared_check(SHARED)
async def follow_yields_transient_events_after_their_durable_event(one: EventLog, two: EventLog) -> None:
    """Transient events may be lost, but are never duplicated or delivered before their durable event."""
    if not (one.takes_deltas and two.takes_deltas):
        return
    await one.append("run", start_events(), expected_seq=0)
    seen: list[Event] = []
    reader = asyncio.create_task(_collect(two, seen))
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
        await reader
    positions = [(event.seq, event.sub) for event in seen]
    assert_equal(positions, sorted({*positions}))
    assert_equal([event.seq for event in seen if event.durable], [*range(1, 10)])


async def _collect(log: EventLog, into: list[Event]) -> None:
    async for event in log.follow("run", deltas=True):
        into.append(event)  # noqa: PERF401 (the caller reads the list during the loop)
