"""Submitted runs, executed in whatever process takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rxloop.coordination.order import RETRY, find_blocking, is_idle, wait_until_first
from rxloop.errors import (
    AttemptError,
    ConflictError,
    ContextBusy,
    InvalidInput,
    LogUnreachable,
    RunExists,
    RxloopError,
    UnknownRun,
)
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.pipeline.snapshot import Snapshot
from rxloop.run.attempt import Attempt
from rxloop.run.beginning import task_event
from rxloop.run.ends import run_exists
from rxloop.run.handle import Run
from rxloop.run.log_writer import LogWriter
from rxloop.run.ownership import find_owned
from rxloop.run.result import Result
from rxloop.run.spec import RunSpec, WhenBusy

log = logging.getLogger("rxloop")

Known = RunRecord | Snapshot
"""What is known of a run before an attempt: its record, or all that the log had of it a moment ago."""


async def submit(event_log: EventLog, spec: RunSpec) -> RunRecord:
    """Write the first event of a run, and begin nothing.

    Raises:
        RunExists: The log has a run of this id.
        EventLogError: It could not be written.
    """
    attempt = Attempt(spec)
    writer = LogWriter(event_log, spec.task_id, 0, lambda error: None)
    attempt.recorder.writer = writer
    task = attempt.recorder.record(task_event(attempt))
    try:
        await writer.flush()
    except ConflictError as error:
        raise run_exists(spec.task_id, "is in the log") from error
    finally:
        await writer.close()
    return RunRecord.from_events(spec.task_id, [task])


async def settle(
    event_log: EventLog,
    task_id: str,
    resume: Callable[[Known], Run[Any]],
    *,
    asks: bool,
    when_busy: WhenBusy = "wait",
    known: Known | None = None,
) -> RunRecord:
    """Bring a run to rest; see `Agent.execute`.

    Args:
        event_log: Holds it.
        task_id: The run.
        resume: Makes one more attempt of it, which waits for its turn, from what is known of the run.
        asks: Whether such an attempt answers questions itself.
        when_busy: What to do while an earlier run of the conversation is not at rest.
        known: What the log had of the run, if it was found due a moment ago.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None and hold.surrounds:
        raise RxloopError(f"a tool of the run {task_id} settles the run itself: neither could ever end")
    while (known := known or await until_due(event_log, task_id, asks=asks, when_busy=when_busy)) is not None:
        run = resume(known)
        # The events are not kept for as long as the attempt lasts.
        record, known = known.record if isinstance(known, Snapshot) else known, None
        ended = await carry_out(task_id, run)
        if ended and (final := run.hold.end) is not None:
            return record.ended_by(final)
        asks = asks and not ended
    return await read_log(event_log.get_record, task_id)


async def until_due(
    event_log: EventLog, task_id: str, *, asks: bool = False, when_busy: WhenBusy = "wait"
) -> Snapshot | None:
    """Wait until no earlier run of the conversation has to come to rest before a run can go on.

    Args:
        event_log: Holds it.
        task_id: The run.
        asks: Whether its questions are answered where it goes on.
        when_busy: Whether to wait, or to raise.

    Returns:
        The run; None if it is at rest itself.

    Raises:
        ContextBusy: There is such a run, and it is not to be waited for.
    """
    while True:
        snapshot = await read_log(event_log.snapshot, task_id)
        if is_idle(snapshot, asks=asks):
            return None
        context_id = snapshot.record.context_id
        earlier = await find_blocking(event_log, context_id, task_id)
        if earlier is None:
            return snapshot
        if when_busy == "refuse":
            raise ContextBusy(
                f"the run {task_id} cannot go on before the run {earlier.task_id}, which is earlier in the "
                f"conversation {context_id} and {earlier.state}: settle that one first, or wait for it"
            )
        await wait_until_first(event_log, context_id, task_id, snapshot.state.seq)


async def carry_out(task_id: str, run: Run[Any]) -> bool:
    """Carry out one more attempt; give whether it came to an end here, and not elsewhere.

    Raises:
        LogUnreachable: Nobody knows what the log has of it.
        RxloopError: It was refused for another reason than that somebody else goes on with the run.
    """
    try:
        await asyncio.wait([run.hold.start()])
    except asyncio.CancelledError:
        # Who settles gives up, and not the run: whoever settles it next goes on with it.
        await run.release()
        raise
    try:
        await run
    except (ConflictError, ContextBusy, InvalidInput) as error:
        log.debug("the run %s, or its conversation, has gone on elsewhere: %s", task_id, error)
        await asyncio.sleep(RETRY)
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code == "log":
            raise LogUnreachable(str(error)) from error
        return False
    return True


async def has_ended(run: Run[Any]) -> bool:
    """Await an attempt that only writes the end of a run; return False if another process owns the run."""
    try:
        await run
    except ConflictError:
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code in ("conflict", "fenced"):
            return False
        raise
    return True


O = TypeVar("O")  # noqa: E741

_MOMENT = 0.01
"""Seconds until what was begun in this process is looked for in the log again."""


async def once(begin: Callable[[], Awaitable[Result[O]]], resume: Callable[[], Awaitable[Result[O]]]) -> Result[O]:
    """Await a run that has a chosen id; where somebody else has begun it, its end, which may still be to come.

    Args:
        begin: Makes the run.
        resume: Goes on with it, or gives its end; it waits while the run is under way elsewhere.
    """
    while True:
        try:
            return await begin()
        except RunExists:
            try:
                return await resume()
            except UnknownRun:
                # Begun in this process this very moment: its first events are on their way into the log.
                await asyncio.sleep(_MOMENT)
