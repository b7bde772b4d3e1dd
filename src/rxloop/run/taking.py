"""How an attempt takes its turn in its conversation: first that of this process, and then that of the log."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import ContextBusy, EventLogError
from rxloop.pipeline.logs import EventLog
from rxloop.run import turns
from rxloop.run.attempt import Attempt
from rxloop.run.held_turn import HeldTurn
from rxloop.stream.scope import GRACE

log = logging.getLogger("rxloop")

RETRY = 0.5
"""Seconds between two tries for a turn that somebody alive has elsewhere."""


async def take_turn(attempt: Attempt, event_log: EventLog) -> bool:
    """Take the turn in the conversation, or wait for it; False if the attempt has to end before it is its turn.

    Raises:
        ContextBusy: Somebody has it, here or in another process, and the attempt is not to wait.
    """
    # One that is cancelled at its very beginning, and need not wait, is recorded all the same.
    if await attempt.life.prepare(try_turn(attempt, event_log), GRACE):
        return True
    if attempt.spec.when_busy == "refuse" and not attempt.life.ending:
        raise ContextBusy(
            f"the conversation {attempt.context_id} has a run that has not ended, in this process or in another one: "
            'await it, cancel it, use another context_id, or queue this one with when_busy="wait"'
        )
    return await attempt.life.prepare(_wait(attempt, event_log)) or False


async def try_turn(attempt: Attempt, event_log: EventLog) -> bool:
    """Take the turn in the conversation if nobody has it."""
    here = turns.take(event_log, attempt.context_id)
    if here is None:
        return False
    attempt.turn = HeldTurn(attempt.life, attempt.recorder, event_log, here)
    return await attempt.turn.take()


async def _wait(attempt: Attempt, event_log: EventLog) -> bool:
    """Wait for the turn, in order with those of this process, and by trying again for those of others."""
    if attempt.turn is None:
        attempt.turn = HeldTurn(
            attempt.life, attempt.recorder, event_log, await turns.wait(event_log, attempt.context_id)
        )
    # Who has it may end this very run: that is worth an earlier look.
    ending = asyncio.ensure_future(_end(attempt, event_log)) if attempt.spec.resume else None
    try:
        while not await attempt.turn.take():
            if ending is None or ending.done():
                await asyncio.sleep(RETRY)
            else:
                await asyncio.wait([ending], timeout=RETRY)
    finally:
        if ending is not None:
            ending.cancel()
    return True


async def _end(attempt: Attempt, event_log: EventLog) -> None:
    """Wait for the end of the attempt that goes on elsewhere."""
    try:
        async for _ in event_log.follow(attempt.task_id):
            pass
    except EventLogError as error:
        log.debug("the run %s cannot be followed: %s", attempt.task_id, error)
