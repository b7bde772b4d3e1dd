"""How an attempt takes its turn in its conversation: first that of this process, and then that of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from rxloop.coordination import locks
from rxloop.coordination.answers import describe_drop
from rxloop.coordination.order import RETRY, drop_questions, wait_for_end
from rxloop.errors import ConflictError, ContextBusy
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.pipeline.snapshot import WAITING
from rxloop.protocol.events import SUPERSEDED, Event
from rxloop.run.attempt import Attempt
from rxloop.run.ends import is_over
from rxloop.run.held_turn import HeldTurn
from rxloop.support.tasks import GRACE

log = logging.getLogger("rxloop")

Close = Callable[[Attempt], Awaitable[None]]
"""Executes an attempt that ends a run."""

_GIVEN_BACK_IN = 2.0
"""Seconds in which a run gives its turn back after its last event is in the log, as a rule."""
_LOOK_AGAIN = 0.02
"""Seconds between two attempts to take a turn that is about to be free."""


async def take_turn(attempt: Attempt, event_log: EventLog) -> bool:
    """Take the turn in the conversation, or wait for it.

    Returns:
        False if the attempt has to end before it is its turn, or the run is over by now.

    Raises:
        ContextBusy: A run is working here or in another process, and the attempt is not to wait. A run that is at rest
            in the log, and has not given its turn back yet, is waited for.
    """
    # One that is cancelled at its very beginning, and need not wait, is recorded all the same.
    if await attempt.life.prepare(try_turn(attempt, event_log), GRACE):
        return True
    if attempt.spec.when_busy == "refuse" and not attempt.life.ending:
        if await attempt.life.prepare(_take_from_run_at_rest(attempt, event_log), GRACE):
            return True
        # One that was cancelled meanwhile is cancelled, and not refused.
        if not attempt.life.ending:
            raise ContextBusy(
                f"the conversation {attempt.context_id} has a run that has not ended, in this process or in another "
                'one: await it, cancel it, use another context_id, or queue this one with when_busy="wait"'
            )
    return await attempt.life.prepare(_wait(attempt, event_log)) or False


async def take_turn_to_begin(attempt: Attempt, event_log: EventLog, close: Close) -> bool:
    """Take the turn for a new run, which drops what earlier runs of its conversation ask.

    Returns:
        As `take_turn`.

    Raises:
        ContextBusy: As `take_turn`; or one of them has got its answer, which would be void.
    """
    while await take_turn(attempt, event_log):
        if attempt.life.ending:
            return True
        listing = read_log(event_log.list_runs, context_id=attempt.context_id, states=WAITING, newest_first=True)
        waiting = await attempt.life.prepare(listing, GRACE)
        if not waiting or not await gives_way(attempt, event_log, waiting, close):
            return True
    return False


async def gives_way(attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close) -> bool:
    """End the earlier runs that wait for answers, or give way to one that has got its answer.

    Args:
        attempt: The attempt, which has the turn.
        event_log: The log.
        waiting: The earlier runs, the newest one first.
        close: Executes the attempt that ends one of them.

    Returns:
        True if the attempt has given its turn back, and waited for the run that comes first.

    Raises:
        ContextBusy: One of them has got its answer, and the attempt is not to wait.
    """
    # With time to come to its end: a run is not to be left half closed.
    answered = await attempt.life.prepare(_drop_questions(attempt, event_log, waiting, close), GRACE)
    if answered is None:
        return False
    if attempt.spec.when_busy == "refuse" or attempt.spec.settles:
        raise ContextBusy(
            f"the run {answered.task_id}, which is earlier in the conversation {attempt.context_id}, has got its "
            "answer, and nobody has gone on with it yet: settle or resume that one first, cancel it, or queue this "
            'one with when_busy="wait"'
        )
    if attempt.turn is not None:
        await attempt.turn.give_back()
        attempt.turn = None
    await attempt.life.prepare(wait_for_end(event_log, answered.task_id, answered.seq))
    return True


async def _drop_questions(
    attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close
) -> RunRecord | None:
    """End the earlier runs of the conversation that wait for answers, so that their readers learn that none counts.

    Returns:
        The run that has got its answer, so that the attempt cannot begin yet.
    """
    answered = await drop_questions(event_log, waiting[0], attempt.task_id)
    if answered is not None:
        return answered
    said = describe_drop(attempt.task_id, attempt.context_id)
    for record in reversed(waiting):
        spec = attempt.spec._replace(
            task_id=record.task_id,
            context_id=record.context_id,
            resume=True,
            known=record,
            cancel=said,
            cancel_code=SUPERSEDED,
            # What the new run brings is none of this one's.
            settles=False,
            messages=(),
            inputs=None,
            fork=None,
            metadata={},
            as_begun=None,
            steering=None,
            chosen_id=False,
        )
        try:
            await close(Attempt(spec))
        except ConflictError as error:
            log.debug("the run %s was ended elsewhere: %s", record.task_id, error)
    return None


async def try_turn(attempt: Attempt, event_log: EventLog) -> bool:
    """Take the turn in the conversation if nobody has it."""
    here = locks.acquire(event_log, attempt.context_id)
    if here is None:
        return False
    attempt.turn = HeldTurn(attempt.life, attempt.recorder, event_log, here)
    return await attempt.turn.take()


async def _take_from_run_at_rest(attempt: Attempt, event_log: EventLog) -> bool:
    """Take the turn from a run that is at rest for every reader of the log, and gives its turn back now.

    Returns:
        False if a run of the conversation is working, or the turn is not free in time.
    """
    loop = asyncio.get_running_loop()
    late = loop.time() + _GIVEN_BACK_IN
    while loop.time() < late and not attempt.life.ending:
        if attempt.turn is None and locks.is_working(event_log, attempt.context_id):
            return False
        if await read_log(event_log.list_runs, context_id=attempt.context_id, states=("working",), limit=1):
            return False
        await asyncio.sleep(_LOOK_AGAIN)
        if await (try_turn(attempt, event_log) if attempt.turn is None else attempt.turn.take()):
            return True
    return False


async def _wait(attempt: Attempt, event_log: EventLog) -> bool:
    """Wait for the turn, in order with those of this process, and by trying again for those of others."""
    if attempt.turn is None:
        attempt.turn = HeldTurn(
            attempt.life, attempt.recorder, event_log, await locks.wait(event_log, attempt.context_id)
        )
    if attempt.spec.settles:
        # It waits for as long as others go on, which is none of its own time.
        attempt.life.limit(None)
    # Who has it may end this very run, for good, so that there is nothing to take the turn for.
    ending = asyncio.ensure_future(_end(attempt, event_log)) if attempt.spec.resume else None
    try:
        while not await attempt.turn.take():
            if ending is None or ending.done():
                await asyncio.sleep(RETRY)
            else:
                await asyncio.wait([ending], timeout=RETRY)
            if ending is not None and ending.done() and is_over(ending.result()):
                return False
    finally:
        if ending is not None:
            ending.cancel()
    if attempt.spec.settles:
        attempt.life.limit(attempt.limits.seconds, anew=True)
    return True


async def _end(attempt: Attempt, event_log: EventLog) -> Event | None:
    """Wait for the end of the attempt that goes on elsewhere; its last event, if the log tells it."""
    last: Event | None = None
    try:
        async for event in event_log.follow(attempt.task_id):
            last = event
    except Exception as error:
        log.debug("the run %s cannot be followed: %s", attempt.task_id, error)
    return last
