"""Life cycle of attempts: loading, announcing, starting, waiting and closing. See `attempt_end` for the last steps."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import ConflictError, EventLogError
from rxloop.protocol.events import Event, normalise
from rxloop.run.attempt import Attempt
from rxloop.run.attempt_end import close_nested, record_end, release, stop, stop_accepting, wait_for_calls
from rxloop.run.final_events import make_exists_error, make_unlogged_end, make_unstarted_end
from rxloop.run.lifetime import Phase, Released
from rxloop.run.startup import announce, make_first_events, start_pipeline
from rxloop.stream.sources import subscribe_views

log = logging.getLogger("rxloop")


def start(attempt: Attempt, event_loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    """Start executing an attempt, returning its task."""
    attempt.lifetime.bind(event_loop)
    attempt.lifetime.phase = Phase.LOADING
    attempt.lifetime.task = event_loop.create_task(execute_attempt(attempt), name=f"rxloop-run-{attempt.task_id}")
    return attempt.lifetime.task


async def execute_attempt(attempt: Attempt) -> None:
    """Execute an attempt. The run's stream is always ended.

    Raises an exception only if the run was refused before its first event. Later errors are published as events.
    """
    lifetime, hub = attempt.lifetime, attempt.recorder.hub
    lifetime.limit(attempt.info.limits.seconds)
    try:
        final = await _load(attempt)
        if final is None:
            lifetime.phase = Phase.ANNOUNCING
            if views := attempt.spec.views:
                subscribe_views(hub.events, views, lifetime.scheduler, lambda e: e is attempt.refusal, attempt.task_id)
            await announce(attempt)
            lifetime.open()
            if attempt.inbox is not None:
                attempt.inbox.open()
            await start_pipeline(attempt)
            await lifetime.wait_end()
            if isinstance(lifetime.end, Released):
                await wait_for_calls(attempt, lifetime.end.grace)
                stop_accepting(attempt)
            await stop(attempt)
            final = await _close(attempt)
        normalise(final)
        attempt.final = final
        hub.publish(final)
        lifetime.phase = Phase.OVER
        hub.complete()
    except Exception as error:
        lifetime.phase = Phase.REFUSED
        attempt.refusal = error
        attempt.is_observed = attempt.is_observed or hub.subscribers > 0
        hub.complete(error)
        raise
    finally:
        lifetime.limit(None)
        attempt.credentials.clear()
        if attempt.unpublished_messages:
            log.warning("Run %s ended before reading the messages sent to it", attempt.task_id)
        if attempt.inbox is not None:
            await lifetime.run_to_completion(attempt.inbox.aclose)
            attempt.inbox = None  # It refers to the attempt, so drop it to avoid a reference cycle.
        attempt.recorder.delivery.stop_guarding()
        if attempt.lease is not None:
            await lifetime.run_to_completion(attempt.lease.release)
        attempt.info.scope.close()


async def _load(attempt: Attempt) -> Event | None:
    """Load the run from the log. Return the final event if the attempt doesn't start.

    Raises:
        RunExists: The id of a new run is already in use.
    """
    if attempt.id_in_use:
        raise make_exists_error(attempt.task_id, "is running in this process")
    if attempt.info.log is None:
        return None
    # Runs without a log do not need this module.
    from rxloop.run.loader import load

    final = await load(attempt, attempt.info.log, execute_attempt)
    if final is None and attempt.recorder.writer is None:
        # The attempt had to end before reading the log, so nothing can be recorded.
        lost = attempt.lease.lost if attempt.lease is not None else None
        return attempt.recorder.record(make_unstarted_end(attempt.spec, attempt.state(), lost or attempt.lifetime.end))
    return final


async def _close(attempt: Attempt) -> Event:
    """Close all open work, record the final event, and return the event to deliver."""
    lifetime, recorder = attempt.lifetime, attempt.recorder
    writer = recorder.writer
    if isinstance(lifetime.end, Released):
        return await release(attempt, lifetime.end)
    final = record_end(attempt, lifetime.end)
    if writer is None:
        return final
    try:
        await lifetime.run_to_completion(writer.flush)
        # A successful write confirms that we are still holding the lease.
        recorder.delivery.open()
    except EventLogError as error:
        recorder.delivery.drop()
        # After a conflict, another process continues the run and logs its end.
        conflict_level = logging.WARNING if attempt.spec.cancel is None else logging.DEBUG
        level = conflict_level if isinstance(error, ConflictError) else logging.ERROR
        log.log(level, "Failed to log the end of run %s: %s", attempt.task_id, error)
        end = make_unlogged_end(attempt.spec, attempt.state(), error)
        final = end.model_copy(update={name: getattr(final, name) for name in _ENVELOPE})
    await lifetime.run_to_completion(writer.close)
    return final


async def execute_nested_attempt(attempt: Attempt) -> None:
    """Execute a nested attempt. Log, lease and inbox are managed by its parent."""
    lifetime = attempt.lifetime
    if lifetime.phase is Phase.CLOSED:
        # Released together with its parent before starting.
        return
    lifetime.limit(attempt.info.limits.seconds)
    try:
        lifetime.phase = Phase.ANNOUNCING
        for event in make_first_events(attempt):
            attempt.publish(event)
        lifetime.open()
        await start_pipeline(attempt)
        await lifetime.wait_end()
    except Exception as error:
        lifetime.fail(error)
    await stop(attempt)
    close_nested(attempt)
    lifetime.limit(None)
    attempt.info.scope.close()


_ENVELOPE = ("context_id", "task_id", "seq", "sub", "attempt", "timestamp")
