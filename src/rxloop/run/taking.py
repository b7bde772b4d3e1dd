"""How an attempt takes its turn in its conversation: first that of this process, and then that of the log."""

from __future__ import annotations

import asyncio
import logging

from rxloop.coordination import locks
from rxloop.coordination.order import RETRY
from rxloop.errors import ContextBusy
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.events import Event
from rxloop.run.attempt import Attempt
from rxloop.run.ends import is_over
from rxloop.run.held_turn import HeldTurn
from rxloop.support.tasks import GRACE

log = logging.getLogger("rxloop")

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
        raise ContextBusy(
            f"the conversation {attempt.context_id} has a run that has not ended, in this process or in another one: "
            'await it, cancel it, use another context_id, or queue this one with when_busy="wait"'
        )
    return await attempt.life.prepare(_wait(attempt, event_log)) or False


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
