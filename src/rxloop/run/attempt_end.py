"""Ending an attempt, either by a final event or by releasing the run."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import EventLogError, InvalidOutput
from rxloop.protocol.events import Event, QuestionEvent, ToolCompleteEvent
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import make_final_event, make_release_event, make_unlogged_end
from rxloop.run.lifetime import PARENT_ENDED, Canceled, Phase, Released
from rxloop.support.foreign_errors import find_raiser, leave_to_loop
from rxloop.support.tasks import GRACE

log = logging.getLogger("rxloop")


def record_end(attempt: Attempt, end: Exception | Canceled | None) -> Event:
    """Close all open work and record the final event. No event may follow while it is being stored."""
    lifetime, state, writer = attempt.lifetime, attempt.state(), attempt.recorder.writer
    for child in attempt.nested:
        # The nested run did not stop in time.
        close_nested(child)
    if end is None and state.done:
        misfit = attempt.try_parse(state.content)[1]
        if misfit is not None:
            end = InvalidOutput(misfit)
            lifetime.revise(end)
    if attempt.recorder.earlier.undecided or attempt.recorder.earlier.nested_events:
        # Only needed by runs that are resumed at a question.
        from rxloop.run.questions.recorded_answers import report_unread

        report_unread(
            attempt.recorder, attempt.questions.read, attempt.initial_events, attempt.claimed_slots, ended=end is None
        )
    paused = end is None and attempt.is_waiting(state)
    lost = writer is not None and writer.error is not None
    if not lost:
        _close_open_work(attempt, paused)
    if attempt.lease is not None:
        attempt.lease.announce_release()
    state = attempt.state()
    # No code waits for the questions of an attempt that has not paused.
    final = attempt.recorder.record(make_final_event(state if paused else state.replace(pending={}), end))
    lifetime.phase = Phase.CLOSED
    return final


def _close_open_work(attempt: Attempt, paused: bool) -> None:
    # When paused, keep open calls and their nested runs for the answers. Close open messages, which exist if a branch
    # failed while another one asked a question.
    if attempt.recorder.top.earlier.nested_events:
        # Imported here because few resumed runs have nested runs.
        from rxloop.run.nested import close_interrupted_runs

        for event in close_interrupted_runs(attempt, keep_waiting=paused):
            attempt.publish(event)
    for event in attempt.close_open_work(keep_calls=paused):
        attempt.publish(event)


def close_nested(attempt: Attempt) -> None:
    """End a nested attempt, unless it has already ended or is being released with its parent."""
    lifetime, recorder = attempt.lifetime, attempt.recorder
    if lifetime.phase in (Phase.CLOSED, Phase.OVER):
        return
    lifetime.finish(PARENT_ENDED)
    end = lifetime.end
    if isinstance(end, Released):
        lifetime.phase = Phase.CLOSED
        return
    attempt.final = record_end(attempt, end)
    recorder.delivery.deliver(attempt.final)
    lifetime.phase = Phase.OVER


async def wait_for_calls(attempt: Attempt, grace: float) -> None:
    """Wait up to `grace` seconds while executing calls that can't be repeated."""
    if not grace or not attempt.has_unrepeatable_call:
        return
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def check(event: Event) -> None:
        if (
            isinstance(event, ToolCompleteEvent | QuestionEvent)
            and not finished.done()
            and not attempt.has_unrepeatable_call
        ):
            finished.set_result(None)

    with attempt.recorder.hub.events.subscribe(check):
        await attempt.lifetime.run_to_completion(lambda: asyncio.wait([finished], timeout=grace))


async def release(attempt: Attempt, cause: Released) -> Event:
    """Release the run so that it can be resumed. Open work stays open. Pending events and the release are logged.

    Returns:
        Final event for subscribers, which isn't logged.
    """
    recorder, writer = attempt.recorder, attempt.recorder.writer
    end = make_unlogged_end(attempt.spec, attempt.state(), cause)
    if attempt.lease is not None:
        await attempt.lifetime.run_to_completion(attempt.lease.wait_checked)
    if writer is not None:
        if writer.error is None and not cause.counts:
            # Otherwise, the next attempt would count this one among those that ended with their process.
            recorder.delivery.deliver(recorder.record(make_release_event()))
        try:
            await attempt.lifetime.run_to_completion(writer.flush)
        except EventLogError as error:
            recorder.delivery.drop()
            log.error("Failed to log the last events of run %s: %s", attempt.task_id, error)
            end = make_unlogged_end(attempt.spec, attempt.state(), error)
        await attempt.lifetime.run_to_completion(writer.close)
        recorder.writer = None
    return recorder.record(end)


def stop_accepting(attempt: Attempt) -> None:
    """Stop accepting events in this run and its nested runs."""
    attempt.lifetime.phase = Phase.CLOSED
    for child in attempt.nested:
        child.lifetime.finish(Released())
        stop_accepting(child)
        # Dispose immediately: any further work by its tools would not be logged, and so be repeated later.
        dispose(child)


async def stop(attempt: Attempt) -> None:
    """Dispose the pipeline and wait until its tasks have stopped."""
    dispose(attempt)
    grace = GRACE * attempt.grace_factor
    stuck = await attempt.lifetime.run_to_completion(lambda: attempt.info.scope.join(grace))
    if stuck:
        log.error("Tasks still running %g s after run %s was stopped: %s", grace, attempt.task_id, ", ".join(stuck))


def dispose(attempt: Attempt) -> None:
    """Dispose the pipeline, cancelling its tasks."""
    try:
        if attempt.steering is not None:
            attempt.steering.dispose()
        attempt.subscription.dispose()
    except BaseException as error:
        # The run must end even if user code fails while disposing.
        log.exception("Failed to dispose the pipeline of run %s, raised by %s", attempt.task_id, find_raiser(error))
        leave_to_loop(error)
        attempt.info.scope.stop()
