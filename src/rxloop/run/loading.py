"""What an attempt begins with: its turn in the conversation, and what the log has of the run and what came before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rxloop.errors import ContextBusy, EventLogError, InvalidInput, RxloopError
from rxloop.pipeline.seams import EventLog
from rxloop.protocol.events import Event, TaskEvent
from rxloop.run import turns
from rxloop.run.attempt import Core
from rxloop.run.endings import final_event, unrecorded_end
from rxloop.run.inputs import check_waiting, new_answers
from rxloop.run.spec import CLOSING, Canceled
from rxloop.state.conversation import check_whole, conversation, read_log
from rxloop.state.run_state import RunState, fold_all
from rxloop.stream.scope import GRACE
from rxloop.stream.writer import LogWriter

if TYPE_CHECKING:
    from rxloop.run.fork import Fork

log = logging.getLogger("rxloop")

T = TypeVar("T")


async def until_end(core: Core, work: Coroutine[Any, Any, T], grace: float = 0) -> T | None:
    """What some work of the preparation comes to; None if the attempt has to end before, which cuts it short.

    Args:
        core: The attempt.
        work: Awaited, in a task of its own.
        grace: The seconds that the work may still take when the attempt has to end.
    """
    if core.ended and not grace:
        work.close()
        return None
    loop = asyncio.get_running_loop()
    preparing = loop.create_task(work, name=f"rxloop-preparation-{core.task_id}")
    timers: list[asyncio.TimerHandle] = []
    core.cut_short = lambda: timers.append(loop.call_later(grace, preparing.cancel)) if grace else preparing.cancel()
    if core.ended:
        core.cut_short()
    try:
        return await preparing
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            core.finish(CLOSING)
        elif not core.ended:
            raise RxloopError("something that the preparation of the run waited for was cancelled") from None
        return None
    finally:
        core.cut_short = None
        for timer in timers:
            timer.cancel()


async def load(core: Core, event_log: EventLog) -> Event | None:
    """Fold what the log has; the final event of a run that is over already, if it is."""
    spec = core.spec
    if spec.resume:
        return await _load_run(core, event_log)
    if spec.fork is not None:
        return await until_end(core, _load_fork(core, event_log, spec.fork))
    if not await _has_turn(core, event_log):
        return None
    core.writer = _writer(core, event_log, 0)
    if spec.keep_context:
        before = conversation(event_log, core.context_id, before=spec.task_id)
        core.states[None] = await until_end(core, before) or core.states[None]
    return None


async def _load_run(core: Core, event_log: EventLog) -> Event | None:
    # An attempt that is cancelled before it began is loaded all the same: its end belongs into the log.
    events = await until_end(core, read_log(event_log.read, core.task_id), GRACE)
    if events is None:
        return None
    if not events:
        check_whole(core.task_id, events, 1)
    core.context_id = events[0].context_id
    # A cancel adds nothing to the conversation, and need not wait for the run that goes on there.
    if core.spec.cancel is None and not _occupied(core, event_log):
        await until_end(core, _turn(core, event_log))
        # Somebody may have gone on with this run meanwhile.
        events = await until_end(core, read_log(event_log.read, core.task_id), GRACE)
        if events is None or (not core.occupies and fold_all(events).state == "working"):
            return None
    if core.spec.cancel is None:
        await until_end(core, _see_that_it_waits(core, event_log, fold_all(events)))
    before = await until_end(core, conversation(event_log, core.context_id, before=core.task_id), GRACE)
    if before is None:
        return None
    core.states[None] = before
    return _take_up(core, event_log, events)


async def _see_that_it_waits(core: Core, event_log: EventLog, state: RunState) -> None:
    """See that no later run of the conversation has let the questions of this one go.

    That one went on without an answer, and its model was told so: an answer now would make two courses of one history.

    Raises:
        InvalidInput: There is such a run.
    """
    paused = state.state in ("input-required", "auth-required")
    if not state.pending or not (paused or core.spec.inputs):
        return
    runs = [record.task_id for record in await read_log(event_log.runs, context_id=core.context_id)]
    later = runs[runs.index(core.task_id) + 1 :] if core.task_id in runs else []
    if later:
        raise InvalidInput(
            f"the run {core.task_id} does not wait for {', '.join(state.pending)} any more: the later run {later[0]} "
            f"of the conversation {core.context_id} has let the question go. Ask anew in a new run, or go on from the "
            "question apart from the conversation: agent.fork(task_id, at=seq, on_input=...)"
        )


def end_before_it_began(core: Core) -> Event:
    """The end of an attempt of which the log has nothing, and that has taken nothing from it."""
    if core.spec.cancel is None and (not core.spec.resume or isinstance(core.end, Canceled)):
        # Who gives an attempt up is told that; a run that the log has is as it was, and there is no other.
        return final_event(core, core.end)
    how = core.spec.cancel or core.end
    return unrecorded_end(core, EventLogError(f"the attempt had to end ({how}) before the log had told of its run"))


async def _load_fork(core: Core, event_log: EventLog, fork: Fork) -> None:
    events = await read_log(event_log.read, fork.task_id)
    check_whole(fork.task_id, events, 1)
    before = await conversation(event_log, events[0].context_id, before=fork.task_id)
    core.past = fork.past(
        events,
        before.messages,
        task_id=core.task_id,
        context_id=core.context_id,
        agent_name=core.agent_name,
        model=core.model.name,
        metadata={**events[0].metadata, **core.spec.metadata},
        asked=core.asked,
    )
    if not _occupied(core, event_log):
        await _turn(core, event_log)
    _recall(core, core.past)
    state = fold_all(core.past)
    _go_on(core, state, state.attempt + 1)
    core.writer = _writer(core, event_log, 0)


def _writer(core: Core, event_log: EventLog, durable_seq: int) -> LogWriter:
    return LogWriter(event_log, core.task_id, durable_seq, core.finish, core.scope.gate)


async def _has_turn(core: Core, event_log: EventLog) -> bool:
    """Whether the run has its turn in the conversation, at once or in the end; not if it has to end before."""
    if not _occupied(core, event_log):
        await until_end(core, _turn(core, event_log))
    return core.occupies


def _occupied(core: Core, event_log: EventLog) -> bool:
    """Whether the run has its turn in the conversation at once.

    Raises:
        ContextBusy: It has not, and is not to wait.
    """
    core.occupies = turns.take(event_log, core.context_id)
    if not core.occupies and core.spec.when_busy == "refuse":
        raise ContextBusy(
            f"the conversation {core.context_id} has a run that has not ended: "
            'await it, cancel it, use another context_id, or queue this one with when_busy="wait"'
        )
    return core.occupies


async def _turn(core: Core, event_log: EventLog) -> None:
    """Wait for the run's turn in the conversation."""
    await turns.wait(event_log, core.context_id)
    core.occupies = True


def release(core: Core) -> None:
    """Give the turn in the conversation back."""
    if core.spec.log is not None and core.occupies:
        turns.give_back(core.spec.log, core.context_id)


def _take_up(core: Core, event_log: EventLog, events: Sequence[Event]) -> Event | None:
    spec = core.spec
    _recall(core, events)
    state = fold_all(events, core.states[None], core.born)
    if spec.cancel is None and (state.retryable or not state.finished):
        check_whole(core.task_id, events, state.seq)
    if state.state == "submitted":
        # Nobody has begun it yet: this is its first attempt, and the `task` belongs to it.
        core.past = events
        _go_on(core, state, state.attempt)
    else:
        _go_on(core, state, state.attempt + 1)
    inputs = spec.inputs or {}
    core.inputs = new_answers(core.task_id, state, inputs)
    if state.finished and not state.retryable:
        return events[-1]
    if not inputs and spec.on_input is None and not core.ended:
        check_waiting(core.task_id, state)
    if spec.cancel is None:
        _compare_strategy(core, events[0])
    core.writer = _writer(core, event_log, state.seq)
    return None


def _go_on(core: Core, state: RunState, attempt: int) -> None:
    core.states[None] = state
    core.attempt = attempt
    core.resume_at(state.seq)


def _recall(core: Core, events: Sequence[Event]) -> None:
    core.recorded_past.add(events)
    for event in events:
        core.graph = core.graph.add(event)
        if isinstance(event, TaskEvent) and event.parent_task_id is None:
            core.metadata = {**event.metadata, **core.spec.metadata}


def _compare_strategy(core: Core, task: Event) -> None:
    """Tell whoever resumes a run by another strategy than it was begun with, which `run(strategy=)` makes easy."""
    begun = task.strategy if isinstance(task, TaskEvent) else None
    if begun != core.spec.strategy:
        log.warning(
            "the run %s was begun with %s and goes on with %s: agent.resume(..., strategy=) takes the first",
            core.task_id,
            begun or "no strategy",
            core.spec.strategy or "none",
        )
