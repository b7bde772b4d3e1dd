"""What a follower of a run gets."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from rxloop.pipeline.logs import EventLog
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.testing.event_log_contract._tools import (
    ENDS,
    Check,
    Follower,
    MakeLog,
    begun,
    end,
    equal,
    new_log,
    note,
    status,
    wait_for,
)


async def a_follower_gets_what_is_there_and_then_what_comes(make_log: MakeLog) -> None:
    """It ends with the final event."""
    async with new_log(make_log) as log:
        await log.append("run", begun(), expected_seq=0)
        follower = Follower(log)
        await follower.sees(1, 2)

        await log.append("run", [note(3), note(4)], expected_seq=2)
        await follower.sees(1, 2, 3, 4)

        await log.append("run", [end(5)], expected_seq=4)
        await wait_for(follower)
        equal(follower.seen, [1, 2, 3, 4, 5])


async def a_follower_begins_after_its_cursor(make_log: MakeLog) -> None:
    """Also where the cursor is ahead of the log."""
    async with new_log(make_log) as log:
        await log.append("run", [*begun(), note(3)], expected_seq=0)
        follower, ahead = Follower(log, after_seq=2), Follower(log, after_seq=4)

        await log.append("run", [note(4), end(5, "failed")], expected_seq=3)
        await wait_for(follower, ahead)

        equal(follower.seen, [3, 4, 5])
        equal(ahead.seen, [5])


async def events_between_two_reads_are_neither_lost_nor_doubled(make_log: MakeLog) -> None:
    """What is appended while a follower handles an event comes next."""
    async with new_log(make_log) as log:
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


async def following_ends_with_the_attempt_whatever_its_state(make_log: MakeLog) -> None:
    """Also for a follower that has seen all of it."""
    for state in ENDS:
        async with new_log(make_log) as log:
            await log.append("run", [*begun(), end(3, state)], expected_seq=0)

            whole, nothing_new = Follower(log), Follower(log, after_seq=3)
            await wait_for(whole, nothing_new)

            equal(whole.seen, [1, 2, 3])
            equal(nothing_new.seen, [])


async def following_goes_on_into_an_attempt_that_has_begun(make_log: MakeLog) -> None:
    """The end of an earlier attempt is not the end."""
    async with new_log(make_log) as log:
        await log.append("run", [*begun(), end(3, "canceled")], expected_seq=0)
        await log.append("run", [status(4, "working", attempt=2, resumed=True, after_seq=3)], expected_seq=3)
        follower = Follower(log)
        await follower.sees(1, 2, 3, 4)

        await log.append("run", [end(5, attempt=2)], expected_seq=4)
        await wait_for(follower)

        equal(follower.seen, [1, 2, 3, 4, 5])


async def following_until_the_end_goes_on_over_pauses_and_attempts(make_log: MakeLog) -> None:
    """With `until="end"` only a completed or failed run is over."""
    async with new_log(make_log) as log:
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


async def the_end_of_a_nested_run_does_not_end_a_follower(make_log: MakeLog) -> None:
    """Neither does it end the run in its record."""
    async with new_log(make_log) as log:
        nested = end(3, task_id="child", parent_task_id="run")
        await log.append("run", [*begun(), nested], expected_seq=0)
        follower = Follower(log)
        await follower.sees(1, 2, 3)
        equal(follower.task.done(), False)
        equal([record.state for record in await log.runs()], ["working"])

        await log.append("run", [end(4)], expected_seq=3)
        await wait_for(follower)

        equal(follower.seen, [1, 2, 3, 4])


async def several_followers_each_get_everything(make_log: MakeLog) -> None:
    """One that leaves does not disturb the others."""
    async with new_log(make_log) as log:
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


async def a_reader_may_stop_in_the_middle_and_come_back(make_log: MakeLog) -> None:
    """The `seq` of the last event is its cursor."""
    async with new_log(make_log) as log:
        await log.append("run", [*begun(), end(3)], expected_seq=0)

        async with aclosing(cast(Any, log.follow("run"))) as events:
            first = await anext(events)
        follower = Follower(log, after_seq=first.seq)
        await wait_for(follower)

        equal(follower.seen, [2, 3])


async def runs_do_not_mix(make_log: MakeLog) -> None:
    """Runs that are written and followed at once each have their own events."""

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

    async with new_log(make_log) as log:
        found = await asyncio.gather(*(run(log, name) for name in "abc"))
        equal(found, [["a"] * 4, ["b"] * 4, ["c"] * 4])


async def a_follower_gets_transient_events_on_demand(make_log: MakeLog) -> None:
    """Those of `after_seq` come again."""
    async with new_log(make_log, keep_deltas=True) as log:
        if not log.keeps_deltas:
            return
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


CHECKS: tuple[Check, ...] = (
    a_follower_gets_what_is_there_and_then_what_comes,
    a_follower_begins_after_its_cursor,
    events_between_two_reads_are_neither_lost_nor_doubled,
    following_ends_with_the_attempt_whatever_its_state,
    following_goes_on_into_an_attempt_that_has_begun,
    following_until_the_end_goes_on_over_pauses_and_attempts,
    the_end_of_a_nested_run_does_not_end_a_follower,
    several_followers_each_get_everything,
    a_reader_may_stop_in_the_middle_and_come_back,
    runs_do_not_mix,
    a_follower_gets_transient_events_on_demand,
)
