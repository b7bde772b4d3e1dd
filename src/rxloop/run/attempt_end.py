"""End of an attempt: its final event, or its release without one."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import EventLogError, InvalidOutput
from rxloop.protocol.events import Event, QuestionEvent, ToolCompleteEvent
from rxloop.run.attempt import Attempt
from rxloop.run.ends import final_event, unrecorded_end
from rxloop.run.life import CUT_OFF, Canceled, Phase, Released
from rxloop.support.foreign_errors import find_raiser, leave_to_loop
from rxloop.support.tasks import GRACE

log = logging.getLogger("rxloop")


def record_end(attempt: Attempt, end: Exception | Canceled | None) -> Event:
    """Close what is open, and record the final event: nothing may come after it while it is made durable."""
    life, state, writer = attempt.life, attempt.state(), attempt.recorder.writer
    for child in attempt.nested:
        # One that did not stop in time.
        close_nested(child)
    if end is None and state.done:
        misfit = attempt.parsed(state.content)[1]
        if misfit is not None:
            end = InvalidOutput(misfit)
            life.revise(end)
    if attempt.recorder.earlier.undecided or attempt.recorder.earlier.nested_events:
        # Imported here: few runs are resumed at a question, and importing rxloop is quicker without.
        from rxloop.run.questions.recorded_answers import report_unread

        report_unread(
            attempt.recorder, attempt.questions.read, attempt.first_news, attempt.claimed_slots, ended=end is None
        )
    paused = end is None and bool(state.pending)
    lost = writer is not None and writer.error is not None
    if not paused and not lost:
        _close_open_work(attempt)
    if attempt.lease is not None:
        attempt.lease.announce_release()
    final = attempt.recorder.record(final_event(attempt.state(), end))
    life.phase = Phase.CLOSED
    return final


def _close_open_work(attempt: Attempt) -> None:
    if attempt.recorder.top.earlier.nested_events:
        # Imported here: few runs are resumed that agents were nested in.
        from rxloop.run.nested import ends_below

        for event in ends_below(attempt):
            attempt.publish(event)
    for event in attempt.left_open():
        attempt.publish(event)


def close_nested(attempt: Attempt) -> None:
    """End the attempt of a nested run, unless it has ended, or is given up with the run that it is nested in."""
    life, recorder = attempt.life, attempt.recorder
    if life.phase in (Phase.CLOSED, Phase.OVER):
        return
    life.finish(CUT_OFF)
    end = life.end
    if isinstance(end, Released):
        life.phase = Phase.CLOSED
        return
    attempt.final = record_end(attempt, end)
    recorder.delivery.deliver(attempt.final)
    life.phase = Phase.OVER


async def wait_for_calls(attempt: Attempt, grace: float) -> None:
    """Wait until no tool is at work whose call cannot be made again, for `grace` seconds at most."""
    if not grace or not attempt.at_work:
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(event: Event) -> None:
        if isinstance(event, ToolCompleteEvent | QuestionEvent) and not over.done() and not attempt.at_work:
            over.set_result(None)

    with attempt.recorder.hub.events.subscribe(look):
        await attempt.life.insist(lambda: asyncio.wait([over], timeout=grace))


async def release(attempt: Attempt, cause: Released) -> Event:
    """Leave the run as it is, for whoever takes it up: what is open stays open, and nothing is written but the past.

    The event that is given is for readers alone.
    """
    recorder, writer = attempt.recorder, attempt.recorder.writer
    end = unrecorded_end(attempt.task_id, attempt.state(), cause)
    if attempt.lease is not None:
        await attempt.life.insist(attempt.lease.wait_checked)
    if writer is not None:
        try:
            await attempt.life.insist(writer.flush)
        except EventLogError as error:
            recorder.delivery.drop()
            log.error("not all of the run %s could be recorded: %s", attempt.task_id, error)
            end = unrecorded_end(attempt.task_id, attempt.state(), error)
        await attempt.life.insist(writer.close)
        recorder.writer = None
    return recorder.record(end)


def stop_accepting(attempt: Attempt) -> None:
    """Take nothing more, in the runs that are nested in this one neither."""
    attempt.life.phase = Phase.CLOSED
    for child in attempt.nested:
        child.life.finish(Released())
        stop_accepting(child)
        # At once: what its tools did from now on would be in no log, and be done once more.
        dispose(child)


async def stop(attempt: Attempt) -> None:
    """Dispose the pipeline, and wait for its tasks to stop."""
    dispose(attempt)
    grace = GRACE * attempt.patience
    stuck = await attempt.life.insist(lambda: attempt.info.scope.join(grace))
    if stuck:
        log.error("after %g s the run %s leaves behind: %s", grace, attempt.task_id, ", ".join(stuck))


def dispose(attempt: Attempt) -> None:
    """Dispose the pipeline, which cancels its tasks."""
    try:
        if attempt.steering is not None:
            attempt.steering.dispose()
        attempt.subscription.dispose()
    except BaseException as error:
        # What somebody's Disposable does must not keep the run from its end.
        log.exception("the pipeline of the run %s could not be disposed by %s", attempt.task_id, find_raiser(error))
        leave_to_loop(error)
        attempt.info.scope.stop()
