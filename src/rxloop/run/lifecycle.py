"""The life of an attempt: load, announce, begin, wait, close. The one way in which every attempt ends is here."""

from __future__ import annotations

import asyncio
import logging

from rxloop.errors import EventLogError, InvalidOutput
from rxloop.protocol.events import AskingEvent, Event, ToolCompleteEvent, normalise
from rxloop.run.attempt import Attempt
from rxloop.run.beginning import announce, begin, first_events
from rxloop.run.ends import end_before_it_began, final_event, run_exists, unrecorded_end
from rxloop.run.life import CUT_OFF, Canceled, Phase, Released
from rxloop.support.foreign_errors import find_raiser, leave_to_loop
from rxloop.support.tasks import GRACE

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
                await _see_off(attempt, life.end.grace)
                _leave(attempt)
            await _stop(attempt)
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
        if attempt.said:
            log.warning("the run %s was over before it heard what had been said to it", attempt.task_id)
        if attempt.inbox is not None:
            await life.insist(attempt.inbox.aclose)
            # The inbox refers to the attempt: without it, no cycle is left to the garbage collector.
            attempt.inbox = None
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


async def _stop(attempt: Attempt) -> None:
    """Dispose the pipeline, and wait for its tasks to stop."""
    _dispose(attempt)
    grace = GRACE * attempt.patience
    stuck = await attempt.life.insist(lambda: attempt.info.scope.join(grace))
    if stuck:
        log.error("after %g s the run %s leaves behind: %s", grace, attempt.task_id, ", ".join(stuck))


def _dispose(attempt: Attempt) -> None:
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


async def _see_off(attempt: Attempt, grace: float) -> None:
    """Wait until no tool is at work whose call cannot be made again, for `grace` seconds at most."""
    if not grace or not attempt.at_work:
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(event: Event) -> None:
        if isinstance(event, ToolCompleteEvent | AskingEvent) and not over.done() and not attempt.at_work:
            over.set_result(None)

    with attempt.recorder.hub.events.subscribe(look):
        await attempt.life.insist(lambda: asyncio.wait([over], timeout=grace))


async def _give_up(attempt: Attempt, cause: Released) -> Event:
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


async def _close(attempt: Attempt) -> Event:
    """Close what is open, and record the final event; give it as readers get it."""
    life, recorder = attempt.life, attempt.recorder
    writer = recorder.writer
    if isinstance(life.end, Released):
        return await _give_up(attempt, life.end)
    final = _record_end(attempt, life.end)
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


def _record_end(attempt: Attempt, end: Exception | Canceled | None) -> Event:
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
    if attempt.recorder.earlier.undecided or attempt.recorder.earlier.below:
        # Imported here: few runs are resumed at a question, and importing rxloop is quicker without.
        from rxloop.run.questions.recorded_answers import report_unread

        report_unread(attempt.recorder, attempt.questions.read, attempt.news, attempt.taken, ended=end is None)
    paused = end is None and bool(state.pending)
    lost = writer is not None and writer.error is not None
    if not paused and not lost:
        _close_what_is_open(attempt)
    if attempt.lease is not None:
        attempt.lease.announce_release()
    final = attempt.recorder.record(final_event(attempt.state(), end))
    life.phase = Phase.CLOSED
    return final


def _close_what_is_open(attempt: Attempt) -> None:
    if attempt.recorder.top.earlier.below:
        # Imported here: few runs are resumed that agents were nested in.
        from rxloop.run.nested import ends_below

        for event in ends_below(attempt):
            attempt.publish(event)
    for event in attempt.left_open():
        attempt.publish(event)


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
    await _stop(attempt)
    close_nested(attempt)
    life.limit(None)
    attempt.info.scope.close()


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
    attempt.final = _record_end(attempt, end)
    recorder.delivery.deliver(attempt.final)
    life.phase = Phase.OVER


def _leave(attempt: Attempt) -> None:
    """Take nothing more, in the runs that are nested in this one neither."""
    attempt.life.phase = Phase.CLOSED
    for child in attempt.nested:
        child.life.finish(Released())
        _leave(child)
        # At once: what its tools did from now on would be in no log, and be done once more.
        _dispose(child)


_ENVELOPE = ("context_id", "task_id", "seq", "sub", "attempt", "timestamp")
