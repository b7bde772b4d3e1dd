"""Admission of attempts: acquiring the conversation lease, and dropping questions left by earlier runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from rxloop.coordination.answers import describe_drop
from rxloop.coordination.lease import Lease
from rxloop.coordination.order import RETRY, drop_questions, wait_for_end
from rxloop.errors import ConflictError, ContextBusy, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import SUPERSEDED, WAITING, Event, StatusUpdateEvent
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import is_over, make_exists_error
from rxloop.run.lifetime import Lifetime
from rxloop.run.recorder import Recorder
from rxloop.support.tasks import GRACE
from rxloop.support.threads import free_in_thread

log = logging.getLogger("rxloop")

Close = Callable[[Attempt], Awaitable[None]]
"""Async function executing an attempt that ends a run."""

_RELEASE_SECONDS = 2.0
"""Seconds a run normally needs to release its lease after logging its last event."""
_EVENTS_PER_TURN = 200
"""Number of copied events to publish before other tasks can run."""
_POLL_INTERVAL = 0.02
"""Seconds to wait before retrying to acquire a lease about to be released."""


async def acquire_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Acquire the conversation lease, waiting for it if `spec.when_busy` allows that.

    Returns:
        False if the attempt must end without getting the lease, or if the run has already ended.

    Raises:
        ContextBusy: Another run is working, and waiting isn't allowed. If that run is already idle according to the
            log, the attempt still waits for it to release the lease.
    """
    # The grace period allows a cancelled attempt to record its end.
    if await attempt.lifetime.prepare(try_acquire_lease(attempt, event_log), GRACE):
        return True
    if attempt.spec.when_busy == "refuse" and not attempt.lifetime.is_ending:
        if await attempt.lifetime.prepare(_acquire_from_idle_run(attempt, event_log), GRACE):
            return True
        # If cancelled while trying, the attempt ends as canceled instead.
        if not attempt.lifetime.is_ending:
            raise ContextBusy(
                f"conversation {attempt.context_id} already has an unfinished run, in this or another process: "
                'await it, cancel it, use another context_id, or wait for it using when_busy="wait"'
            )
    return await attempt.lifetime.prepare(_wait_for_lease(attempt, event_log)) or False


async def acquire_lease_to_begin(attempt: Attempt, event_log: EventLog, close: Close) -> bool:
    """Acquire the lease for a new run, and drop questions left by earlier runs of the conversation.

    Returns:
        See `acquire_lease`.

    Raises:
        ContextBusy: See `acquire_lease` and `drop_earlier_questions`.
    """
    while await acquire_lease(attempt, event_log):
        if attempt.lifetime.is_ending:
            return True
        listing = read_log(event_log.list_conversation, attempt.conversation, states=WAITING, newest_first=True)
        waiting = await attempt.lifetime.prepare(listing, GRACE)
        if not waiting or await drop_earlier_questions(attempt, event_log, waiting, close):
            return True
    return False


async def drop_earlier_questions(
    attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close
) -> bool:
    """End earlier runs waiting for answers, unless one was answered and must be resumed first.

    Args:
        attempt: Attempt holding the lease.
        event_log: Log with the conversation.
        waiting: Earlier runs, newest first.
        close: Async function executing the attempt that ends an earlier run.

    Returns:
        False if an earlier run was answered, after releasing the lease and waiting for that run.

    Raises:
        ContextBusy: An earlier run was answered, and waiting isn't allowed.
    """
    # With a grace period, even a cancelled attempt finishes closing earlier runs.
    answered = await attempt.lifetime.prepare(_drop_questions(attempt, event_log, waiting, close), GRACE)
    if answered is None:
        return True
    if attempt.spec.when_busy == "refuse" or attempt.spec.only_executes:
        raise ContextBusy(
            f"an earlier run of conversation {attempt.context_id}, {answered.task_id}, was answered but has not been "
            'resumed yet: execute, resume or cancel it first, or wait for it using when_busy="wait"'
        )
    if attempt.lease is not None:
        await attempt.lease.release()
    await attempt.lifetime.prepare(wait_for_end(event_log, answered.task_id, answered.seq))
    return False


async def _drop_questions(
    attempt: Attempt, event_log: EventLog, waiting: Sequence[RunRecord], close: Close
) -> RunRecord | None:
    """End earlier runs waiting for answers, so that their subscribers stop waiting too.

    Returns:
        The earlier run that was answered and must be resumed first, or None.

    Raises:
        LogUnreachable: The end of an earlier run couldn't be logged.
    """
    answered = await drop_questions(event_log, waiting[0], attempt.task_id)
    if answered is not None:
        return answered
    reason = describe_drop(attempt.task_id, attempt.context_id)
    for record in reversed(waiting):
        spec = attempt.spec._replace(
            task_id=record.task_id,
            context_id=record.context_id,
            owner=record.owner,
            resume=True,
            cached=record,
            cancel=reason,
            cancel_code=SUPERSEDED,
            # Options passed for the new run must not affect earlier runs.
            only_executes=False,
            messages=(),
            inputs=None,
            fork=None,
            metadata={},
            apply_recorded_options=None,
            steering=None,
            chosen_id=False,
        )
        closing = Attempt(spec)
        try:
            await close(closing)
        except ConflictError as error:
            log.debug("Run %s was ended elsewhere: %s", record.task_id, error)
        final = closing.final
        if isinstance(final, StatusUpdateEvent) and final.error is not None and final.error.code == "log":
            # Otherwise, the earlier run would keep waiting in the log.
            raise LogUnreachable(final.error.message, retryable=final.error.retryable)
    return None


async def try_acquire_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Try to acquire the conversation lease. Return False if another attempt is holding it."""
    lease, recorder = _get_lease(attempt, event_log), attempt.recorder
    if not await lease.try_acquire():
        return False
    if event_log.lease_seconds is not None:
        check = partial(lease.check, recorder.delivery.open, partial(_fail_writer, recorder))
        recorder.guard(round(event_log.lease_seconds * 500), check)
    return True


def _get_lease(attempt: Attempt, event_log: EventLog) -> Lease:
    if attempt.lease is None:
        # Avoid a reference cycle, which would keep every attempt in memory until garbage collection.
        lose = partial(_end_unleased, attempt.lifetime, attempt.recorder)
        attempt.lease = Lease(event_log, attempt.conversation, attempt.task_id, lose)
    return attempt.lease


def _end_unleased(lifetime: Lifetime, recorder: Recorder, error: EventLogError) -> None:
    """End an attempt immediately, cancelling its tools. Its events are neither logged nor delivered."""
    if recorder.writer is not None:
        recorder.writer.fail(error)
    else:
        lifetime.finish(error)


def _fail_writer(recorder: Recorder, error: EventLogError) -> None:
    if recorder.writer is not None:
        recorder.writer.fail(error)


async def _acquire_from_idle_run(attempt: Attempt, event_log: EventLog) -> bool:
    """Try to acquire the lease from a run that is already idle according to the log.

    Returns:
        False if a run is working, or the lease isn't released in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _RELEASE_SECONDS
    while loop.time() < deadline and not attempt.lifetime.is_ending:
        if _get_lease(attempt, event_log).is_busy_here:
            return False
        if await read_log(event_log.list_conversation, attempt.conversation, states=("working",), limit=1):
            return False
        await asyncio.sleep(_POLL_INTERVAL)
        if await try_acquire_lease(attempt, event_log):
            return True
    return False


async def _wait_for_lease(attempt: Attempt, event_log: EventLog) -> bool:
    """Wait for the lease. Runs of this process queue for it, then poll until other processes release it."""
    await _get_lease(attempt, event_log).wait_for_lock()
    if attempt.spec.only_executes:
        # Time spent waiting for other runs doesn't count towards the time limit.
        attempt.lifetime.limit(None)
    # While we are waiting, the lease holder may finish this run.
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
    if attempt.spec.only_executes:
        attempt.lifetime.limit(attempt.info.limits.seconds, restart=True)
    return True


async def _follow_to_end(attempt: Attempt, event_log: EventLog) -> Event | None:
    """Wait for another process to end its attempt. Return the last event, or None if unavailable."""
    last: Event | None = None
    try:
        async for event in event_log.follow(attempt.task_id):
            last = event
    except Exception as error:
        log.debug("Cannot follow run %s: %s", attempt.task_id, error)
    return last


async def claim_run(attempt: Attempt, first: Iterable[Event]) -> None:
    """Log the first events of an attempt. When several processes try, only one succeeds.

    For forks, the copied events are logged in the same batch.

    Raises:
        RunExists: A new run using this id was just started elsewhere.
        ConflictError: Another process has resumed the run.
        Fenced: The lease was lost.
    """
    recorder, writer = attempt.recorder, attempt.recorder.writer
    if writer is not None:
        writer.add_copied(attempt.earlier_events)
    recorded = [recorder.record(event) for event in first]
    # An attempt that only ends the run is logged as one batch, to avoid showing the run as working.
    ends_at_once = recorder.has_events and attempt.lifetime.is_ending
    if writer is not None and not ends_at_once:
        try:
            await attempt.lifetime.run_to_completion(writer.flush)
        except ConflictError as error:
            await writer.close()
            if isinstance(error, Fenced) and not await _is_in_another_conversation(attempt):
                raise
            run = attempt.task_id
            if attempt.spec.chosen_id:
                raise make_exists_error(run, "was just started elsewhere") from error
            raise ConflictError(
                f"run {run} was resumed elsewhere at the same time and continues there; nothing was changed here. Use "
                f"follow(log, {run!r}) to read its events, or call agent.resume() later to get its result"
            ) from error
    for count, event in enumerate((*attempt.earlier_events, *recorded), 1):
        recorder.hub.publish(event)
        if count % _EVENTS_PER_TURN == 0:
            await attempt.lifetime.run_to_completion(partial(asyncio.sleep, 0))
    logged = [attempt.earlier_events]
    attempt.earlier_events = logged[0][:1]
    free_in_thread(logged)


async def _is_in_another_conversation(attempt: Attempt) -> bool:
    """Return True if a run using the chosen id exists in another conversation.

    In that case another process holds that conversation's lease, and this attempt can't have lost it.
    """
    log = attempt.info.log
    if log is None or not attempt.spec.chosen_id:
        return False
    try:
        record = await read_log(log.get_record, attempt.task_id)
    except EventLogError:
        return False
    return record.conversation != attempt.conversation
