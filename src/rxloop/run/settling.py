"""Runs that nobody holds: submitted to the log, and brought to rest by whoever settles them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rxloop.errors import AttemptError, ConflictError, ContextBusy, InvalidInput, LogUnreachable, RxloopError
from rxloop.pipeline.logs import EventLog, Mailbox
from rxloop.pipeline.values import RunRecord
from rxloop.run.attempt import Attempt
from rxloop.run.beginning import task_event
from rxloop.run.ends import run_exists
from rxloop.run.handle import Run
from rxloop.run.inputs import WAITING, later_run
from rxloop.run.letters import take
from rxloop.run.options import WhenBusy
from rxloop.run.ownership import alive
from rxloop.run.spec import RunSpec
from rxloop.run.taking import RETRY
from rxloop.state.conversation import read_log
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState
from rxloop.stream.writer import LogWriter

log = logging.getLogger("rxloop")

_PAGE = 10
"""Runs of a conversation that are listed at once."""


async def submit(event_log: EventLog, spec: RunSpec) -> RunRecord:
    """Write the first event of a run, and begin nothing.

    Raises:
        RunExists: The log has a run of this id.
        EventLogError: It could not be written.
    """
    attempt = Attempt(spec)
    writer = LogWriter(event_log, spec.task_id, 0, lambda error: None)
    attempt.recorder.writer = writer
    attempt.recorder.record(task_event(attempt))
    try:
        await writer.flush()
    except ConflictError as error:
        raise run_exists(spec.task_id, "is in the log") from error
    finally:
        await writer.close()
    return await read_log(event_log.record, spec.task_id)


async def settle(
    event_log: EventLog, task_id: str, resume: Callable[[], Run[Any]], *, asks: bool, when_busy: WhenBusy = "wait"
) -> RunRecord:
    """Bring a run to rest; see `Agent.settle`.

    Args:
        event_log: Holds it.
        task_id: The run.
        resume: Makes one more attempt of it, which waits for its turn.
        asks: Whether such an attempt answers questions itself.
        when_busy: What to do while an earlier run of the conversation is not at rest.
    """
    hold = alive(task_id)
    if hold is not None and hold.surrounds:
        raise RxloopError(f"a tool of the run {task_id} settles the run itself: neither could ever end")
    refused_at = 0
    while True:
        state = await until_due(event_log, task_id, asks=asks, when_busy=when_busy)
        if state is None:
            return await read_log(event_log.record, task_id)
        try:
            asks = not await _attempt(task_id, resume()) and asks
        except InvalidInput as error:
            # It waits by now; or a later run of the conversation has let the question go, which stays so.
            if refused_at == state.seq:
                log.warning("the run %s is left as it is: %s", task_id, error)
                return await read_log(event_log.record, task_id)
            refused_at = state.seq


async def until_due(
    event_log: EventLog, task_id: str, *, asks: bool = False, when_busy: WhenBusy = "wait"
) -> RunState | None:
    """Wait until no earlier run of the conversation has to come to rest before a run can go on.

    Args:
        event_log: Holds it.
        task_id: The run.
        asks: Whether its questions are answered where it goes on.
        when_busy: Whether to wait, or to raise.

    Returns:
        Where the run stands; None if it is at rest itself.

    Raises:
        ContextBusy: There is such a run, and it is not to be waited for.
    """
    while True:
        events = await read_log(event_log.read, task_id)
        context_id, state = events[0].context_id, fold_all(events)
        asking = asks and state.state in WAITING
        if not asking and await _is_at_rest(event_log, context_id, task_id, state):
            return None
        earlier = await _earlier(event_log, context_id, task_id)
        if earlier is None:
            return state
        if when_busy == "refuse":
            raise ContextBusy(
                f"the run {task_id} cannot go on before the run {earlier.task_id}, which is earlier in the "
                f"conversation {context_id} and {earlier.state}: settle that one first, or wait for it"
            )
        await over_or_later(event_log, earlier.task_id, earlier.seq)


async def _attempt(task_id: str, run: Run[Any]) -> bool:
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
    except ConflictError as error:
        log.debug("the run %s was taken up elsewhere: %s", task_id, error)
        await asyncio.sleep(RETRY)
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code == "log":
            raise LogUnreachable(str(error)) from error
        return False
    return True


async def _is_at_rest(event_log: EventLog, context_id: str, task_id: str, state: RunState) -> bool:
    """Whether nothing is to be done for a run: it is over, was cancelled, or waits for an answer that nobody has given.

    Args:
        event_log: Holds it.
        context_id: Its conversation.
        task_id: The run.
        state: Where it stands.
    """
    if state.finished or state.state == "canceled":
        return True
    if state.state not in WAITING:
        return False
    if not isinstance(event_log, Mailbox):
        return True
    taken = take(task_id, state, await read_log(event_log.mail, task_id, after=state.mail), warn=False)
    if taken.cancel is not None:
        return False
    if not taken.answers:
        return True
    # A later run may have let the question go.
    return later_run(task_id, await read_log(event_log.runs, context_id=context_id)) is not None


async def _earlier(event_log: EventLog, context_id: str, task_id: str) -> RunRecord | None:
    """The first run of the conversation before this one that is not at rest."""
    after: str | None = None
    while True:
        # The first few tell, however many wait in the conversation.
        page = await read_log(event_log.runs, context_id=context_id, unfinished=True, after=after, limit=_PAGE)
        for record in page:
            if record.task_id == task_id:
                return None
            if record.state in ("submitted", "working"):
                return record
            if record.state in WAITING:
                state = fold_all(await read_log(event_log.read, record.task_id))
                if not await _is_at_rest(event_log, context_id, record.task_id, state):
                    return record
        if len(page) < _PAGE:
            return None
        after = page[-1].task_id


async def over_or_later(event_log: EventLog, task_id: str, after_seq: int) -> None:
    """Wait until the attempt of a run that goes on elsewhere is over, for half a second at most."""
    grown = False
    with suppress(TimeoutError):
        async with asyncio.timeout(RETRY):
            async for _ in event_log.follow(task_id, after_seq=after_seq):
                grown = True
            if not grown:
                await asyncio.sleep(RETRY)
