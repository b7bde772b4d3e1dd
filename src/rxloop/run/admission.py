"""Admission of an attempt to its conversation: it acquires the lease and drops the questions of earlier runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from rxloop.coordination.answers import describe_drop
from rxloop.coordination.lease import Lease
from rxloop.coordination.order import RETRY, drop_questions, wait_for_end
from rxloop.errors import ConflictError, ContextBusy, EventLogError, Fenced
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import SUPERSEDED, WAITING, Event
from rxloop.run.attempt import Attempt
from rxloop.run.ends import is_over, run_exists
from rxloop.run.life import Life
from rxloop.run.recorder import Recorder
from rxloop.support.tasks import GRACE

log = logging.getLogger("rxloop")

Close = Callable[[Attempt], Awaitable[None]]
"""Executes an attempt that ends a run."""

_RELEASED_IN = 2.0
"""Seconds in which a run normally releases its lease after its last event is in the log."""
_POLL = 0.02
"""Seconds between two tries to acquire a lease that is about to be released."""


async def acquire_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Acquire the lease of the conversation. `spec.when_busy` decides whether to wait for it.

    Returns:
        False if the attempt must end before it gets the lease, or the run is over by now.

    Raises:
        ContextBusy: Another run is working, and the attempt must not wait. If the log shows the other run as idle, the
            attempt waits until that run has released its lease.
    """
    # The grace period lets an attempt that was cancelled at its start record its end.
    if await attempt.life.prepare(try_acquire_lease(attempt, event_log), GRACE):
        return True
    if attempt.spec.when_busy == "refuse" and not attempt.life.ending:
        if await attempt.life.prepare(_acquire_from_idle_run(attempt, event_log), GRACE):
            return True
        # An attempt that was cancelled meanwhile ends as canceled.
        if not attempt.life.ending:
            raise ContextBusy(
                f"the conversation {attempt.context_id} has a run that has not ended, in this process or in another "
                'one: await it, cancel it, use another context_id, or queue this one with when_busy="wait"'
            )
    return await attempt.life.prepare(_wait_for_lease(attempt, event_log)) or False


async def acquire_lease_to_begin(attempt: Attempt, event_log: EventLog, close: Close) -> bool:
    """Acquire the lease for a new run, and drop the questions of earlier runs of the conversation.

    Returns:
        See `acquire_lease`.

    Raises:
        ContextBusy: See `acquire_lease` and `drop_earlier_questions`.
    """
    while await acquire_lease(attempt, event_log):
        if attempt.life.ending:
            return True
        listing = read_log(event_log.list_runs, context_id=attempt.context_id, states=WAITING, newest_first=True)
        waiting = await attempt.life.prepare(listing, GRACE)
        if not waiting or await drop_earlier_questions(attempt, event_log, waiting, close):
            return True
    return False


async def drop_earlier_questions(
    attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close
) -> bool:
    """End the earlier runs that wait for answers, unless one of them has an answer and must continue first.

    Args:
        attempt: The attempt. It holds the lease.
        event_log: The log.
        waiting: The earlier runs, the newest one first.
        close: Executes the attempt that ends an earlier run.

    Returns:
        False if the attempt has released the lease and waited for an earlier run that has an answer.

    Raises:
        ContextBusy: An earlier run has an answer, and the attempt must not wait.
    """
    # The grace period lets a cancelled attempt finish, so that no earlier run is left half closed.
    answered = await attempt.life.prepare(_drop_questions(attempt, event_log, waiting, close), GRACE)
    if answered is None:
        return True
    if attempt.spec.when_busy == "refuse" or attempt.spec.settles:
        raise ContextBusy(
            f"the run {answered.task_id}, which is earlier in the conversation {attempt.context_id}, has got its "
            "answer, and nobody has gone on with it yet: settle or resume that one first, cancel it, or queue this "
            'one with when_busy="wait"'
        )
    if attempt.lease is not None:
        await attempt.lease.release()
    await attempt.life.prepare(wait_for_end(event_log, answered.task_id, answered.seq))
    return False


async def _drop_questions(
    attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close
) -> RunRecord | None:
    """End the earlier runs of the conversation that wait for answers, so that their readers learn that none counts.

    Returns:
        The run that has an answer, so that the attempt cannot begin yet.
    """
    answered = await drop_questions(event_log, waiting[0], attempt.task_id)
    if answered is not None:
        return answered
    reason = describe_drop(attempt.task_id, attempt.context_id)
    for record in reversed(waiting):
        spec = attempt.spec._replace(
            task_id=record.task_id,
            context_id=record.context_id,
            resume=True,
            known=record,
            cancel=reason,
            cancel_code=SUPERSEDED,
            # The options of the new run do not apply to the earlier run.
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


async def try_acquire_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Acquire the lease of the conversation without waiting; False if another attempt holds it."""
    lease, recorder = _get_lease(attempt, event_log), attempt.recorder
    if not await lease.try_acquire():
        return False
    if event_log.lease_seconds is not None:
        check = partial(lease.check, recorder.delivery.open, partial(_fail_writer, recorder))
        recorder.guard(round(event_log.lease_seconds * 500), check)
    return True


def _get_lease(attempt: Attempt, event_log: EventLog) -> Lease:
    if attempt.lease is None:
        # The lease must not refer to the attempt: the cycle would leave each attempt to the garbage collector.
        lose = partial(_end_unleased, attempt.life, attempt.recorder)
        attempt.lease = Lease(event_log, attempt.context_id, attempt.task_id, lose)
    return attempt.lease


def _end_unleased(life: Life, recorder: Recorder, error: EventLogError) -> None:
    """End an attempt at once: its tools are cancelled, and its events reach neither the log nor subscribers."""
    if recorder.writer is not None:
        recorder.writer.fail(error)
    else:
        life.finish(error)


def _fail_writer(recorder: Recorder, error: EventLogError) -> None:
    if recorder.writer is not None:
        recorder.writer.fail(error)


async def _acquire_from_idle_run(attempt: Attempt, event_log: EventLog) -> bool:
    """Acquire the lease from a run that the log shows as idle, and that is about to release it.

    Returns:
        False if a run of the conversation is working, or the lease is not released in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _RELEASED_IN
    while loop.time() < deadline and not attempt.life.ending:
        if _get_lease(attempt, event_log).is_busy_here:
            return False
        if await read_log(event_log.list_runs, context_id=attempt.context_id, states=("working",), limit=1):
            return False
        await asyncio.sleep(_POLL)
        if await try_acquire_lease(attempt, event_log):
            return True
    return False


async def _wait_for_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Wait for the lease. Attempts of this process wait in order; for other processes, the attempt tries again."""
    await _get_lease(attempt, event_log).wait_for_lock()
    if attempt.spec.settles:
        # The time limit of the run does not include the time in which other runs work.
        attempt.life.limit(None)
    # The holder of the lease may finish this run, so that there is nothing left to do.
    ending = asyncio.ensure_future(_follow_to_end(attempt, event_log)) if attempt.spec.resume else None
    try:
        while not await try_acquire_lease(attempt, event_log):
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
        attempt.life.limit(attempt.info.limits.seconds, anew=True)
    return True


async def _follow_to_end(attempt: Attempt, event_log: EventLog) -> Event | None:
    """Wait until the attempt of another process ends; return its last event, if the log has it."""
    last: Event | None = None
    try:
        async for event in event_log.follow(attempt.task_id):
            last = event
    except Exception as error:
        log.debug("the run %s cannot be followed: %s", attempt.task_id, error)
    return last


async def claim_run(attempt: Attempt, first: Iterable[Event]) -> None:
    """Append the first events of an attempt. Of several processes, only one succeeds and continues the run.

    A fork appends the events that it copied from another run in the same batch.

    Raises:
        RunExists: A new run of this id has just begun elsewhere.
        ConflictError: Another process continues the run.
        Fenced: The lease was lost.
    """
    recorder, writer = attempt.recorder, attempt.recorder.writer
    if writer is not None:
        for event in attempt.earlier_events:
            if event.seq > writer.durable_seq:
                writer.add(event)
    recorded = [recorder.record(event) for event in first]
    # An attempt that only ends the run is appended as a whole, so that no reader sees it working.
    ends_at_once = recorder.begun and attempt.life.ending
    if writer is not None and not ends_at_once:
        try:
            await attempt.life.insist(writer.flush)
        except ConflictError as error:
            await writer.close()
            if isinstance(error, Fenced) and not await _is_in_another_conversation(attempt):
                raise
            run = attempt.task_id
            if attempt.spec.chosen_id:
                raise run_exists(run, "was begun elsewhere at the same moment") from error
            raise ConflictError(
                f"the run {run} was taken up elsewhere at the same moment, and goes on there; nothing was done here. "
                f"follow(log, {run!r}) shows what it comes to; agent.resume() gives its end later"
            ) from error
    for event in (*attempt.earlier_events, *recorded):
        recorder.hub.publish(event)


async def _is_in_another_conversation(attempt: Attempt) -> bool:
    """Return True if the log has a run of the chosen id in another conversation.

    The owner of that conversation keeps every other process out, and this one had no lease of it to lose.
    """
    log = attempt.info.log
    if log is None or not attempt.spec.chosen_id:
        return False
    try:
        record = await read_log(log.get_record, attempt.task_id)
    except EventLogError:
        return False
    return record.context_id != attempt.context_id
