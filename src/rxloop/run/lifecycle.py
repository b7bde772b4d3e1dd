"""Life cycle of an attempt: load, announce, begin, wait, close. `attempt_end.py` has the steps of the end."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import EventLogError
from rxloop.protocol.events import Event, normalise
from rxloop.run.attempt import Attempt
from rxloop.run.attempt_end import close_nested, record_end, release, stop, stop_accepting, wait_for_calls
from rxloop.run.beginning import announce, begin, first_events
from rxloop.run.ends import end_before_it_began, run_exists, unrecorded_end
from rxloop.run.life import Phase, Released

log = logging.getLogger("rxloop")


def start(attempt: Attempt, event_loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    """Start an attempt in an event loop, and give the task that carries it out."""
    attempt.life.bind(event_loop)
    attempt.life.phase = Phase.LOADING
    return event_loop.create_task(carry_out(attempt), name=f"rxloop-run-{attempt.task_id}")


async def carry_out(attempt: Attempt) -> None:
    """Carry out one attempt. Whatever happens, the stream of the run ends.

    An exception here is a run that was refused before its first event; everything later is an event.
    """
    life, hub = attempt.life, attempt.recorder.hub
    life.limit(attempt.info.limits.seconds)
    try:
        final = await _load(attempt)
        if final is None:
            life.phase = Phase.ANNOUNCING
            await announce(attempt)
            life.open()
            if attempt.inbox is not None:
                attempt.inbox.open()
            await begin(attempt)
            await life.until_end()
            if isinstance(life.end, Released):
                await wait_for_calls(attempt, life.end.grace)
                stop_accepting(attempt)
            await stop(attempt)
            final = await _close(attempt)
        normalise(final)
        attempt.final = final
        hub.publish(final)
        life.phase = Phase.OVER
        hub.complete()
    except Exception as error:
        life.phase = Phase.REFUSED
        attempt.refusal = error
        attempt.noticed = attempt.noticed or hub.subscribers > 0
        hub.complete(error)
        raise
    finally:
        life.limit(None)
        attempt.credentials.clear()
        if attempt.unpublished_messages:
            log.warning("the run %s was over before it heard what had been said to it", attempt.task_id)
        if attempt.inbox is not None:
            await life.insist(attempt.inbox.aclose)
            attempt.inbox = None  # It refers to the attempt, so a cycle would be left to the garbage collector.
        attempt.recorder.delivery.stop_guarding()
        if attempt.lease is not None:
            await life.insist(attempt.lease.release)
        attempt.info.scope.close()


async def _load(attempt: Attempt) -> Event | None:
    """Load what the log has; give the final event of an attempt that does not begin.

    Raises:
        RunExists: A new run has the id of another one.
    """
    if attempt.exists:
        raise run_exists(attempt.task_id, "goes on in this process")
    if attempt.info.log is None:
        return None
    # Imported here: a run without a log has nothing to load, and importing rxloop is quicker without.
    from rxloop.run.loading import load

    final = await load(attempt, attempt.info.log, carry_out)
    if final is None and attempt.recorder.writer is None:
        # It had to end before its turn, or before the log told where it stands: nothing of it can be recorded.
        lost = attempt.lease.lost if attempt.lease is not None else None
        return attempt.recorder.record(end_before_it_began(attempt.spec, attempt.state(), lost or attempt.life.end))
    return final


async def _close(attempt: Attempt) -> Event:
    """Close what is open, and record the final event; give it as readers get it."""
    life, recorder = attempt.life, attempt.recorder
    writer = recorder.writer
    if isinstance(life.end, Released):
        return await release(attempt, life.end)
    final = record_end(attempt, life.end)
    if writer is None:
        return final
    try:
        await life.insist(writer.flush)
        # Nobody else can have the turn whose events the log takes.
        recorder.delivery.open()
    except EventLogError as error:
        recorder.delivery.drop()
        log.error("the run %s could not be recorded to its end: %s", attempt.task_id, error)
        end = unrecorded_end(attempt.task_id, attempt.state(), error)
        final = end.model_copy(update={name: getattr(final, name) for name in _ENVELOPE})
    await life.insist(writer.close)
    return final


async def carry_out_nested(attempt: Attempt) -> None:
    """Carry out the attempt of a run that is nested in another one, which has the log, the turn and the mail."""
    life = attempt.life
    if life.phase is Phase.CLOSED:
        # Given up with the run around it before it began.
        return
    life.limit(attempt.info.limits.seconds)
    try:
        life.phase = Phase.ANNOUNCING
        for event in first_events(attempt):
            attempt.publish(event)
        life.open()
        await begin(attempt)
        await life.until_end()
    except Exception as error:
        life.fail(error)
    await stop(attempt)
    close_nested(attempt)
    life.limit(None)
    attempt.info.scope.close()


_ENVELOPE = ("context_id", "task_id", "seq", "sub", "attempt", "timestamp")
