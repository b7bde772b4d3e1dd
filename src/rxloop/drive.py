"""The life of an attempt: load, begin, wait, finish. The one way in which every attempt ends is here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rxloop import turns
from rxloop.conversation import conversation, reading
from rxloop.core import Core
from rxloop.endings import final_event, unrecorded_end
from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    ContextBusy,
    EventLogError,
    InvalidOutput,
    Paused,
    RxloopError,
)
from rxloop.events import Event, InputReceivedEvent, StatusUpdateEvent, TaskEvent
from rxloop.inputs import check_waiting, new_answers
from rxloop.limits import LimitHit
from rxloop.messages import Message
from rxloop.protocols import EventLog
from rxloop.requests import RunRequest
from rxloop.spec import Canceled
from rxloop.state import RunState, fold_all
from rxloop.storable import settle
from rxloop.stream.bridges import emit
from rxloop.stream.connect import connect
from rxloop.stream.guard import as_error, leave_to_loop, raiser
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.within import called, within
from rxloop.stream.writer import LogWriter

if TYPE_CHECKING:
    from rxloop.fork import Fork

log = logging.getLogger("rxloop")

GRACE = 5.0
"""Seconds that the tasks of a run have to stop in."""

CLOSING = Canceled("the event loop is closing")
"""Nobody but a closing event loop cancels the task of a run; the run still ends in the proper way."""

T = TypeVar("T")


async def drive(core: Core) -> None:
    """Carry out one attempt. Whatever happens, the stream of the run ends.

    An exception here is a run that was refused before its first event; everything later is an event.
    """
    timer = _time_limit(core)
    try:
        finished = await _load(core)
        if finished is not None:
            _publish_end(core, finished)
            return
        if (core.spec.resume or core.spec.fork is not None) and core.writer is None:
            # It had to end before the log told where it stands: nothing of this attempt can be recorded.
            _publish_end(core, core.record(_end_before_it_began(core)))
            return
        await _begin(core)
        await _wait(core)
        await _finish(core)
    except Exception as error:
        core.open = False
        core.refusal = error
        core.told = core.told or core.hub.subscribers > 0
        core.hub.complete(error)
        raise
    finally:
        if timer is not None:
            timer.cancel()
        _release(core)


def _time_limit(core: Core) -> asyncio.TimerHandle | None:
    seconds = core.limits.seconds
    if seconds is None:
        return None
    late = LimitHit("timeout", f"the run took longer than {seconds} s (limits.seconds)")
    return asyncio.get_running_loop().call_later(seconds, core.finish, late)


async def _until_end(core: Core, work: Coroutine[Any, Any, T], grace: float = 0) -> T | None:
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


async def _load(core: Core) -> Event | None:
    """Fold what the log has; the final event of a run that is over already, if it is."""
    spec = core.spec
    if spec.log is None:
        return None
    if spec.resume:
        return await _load_run(core, spec.log)
    if spec.fork is not None:
        return await _until_end(core, _load_fork(core, spec.log, spec.fork))
    if not await _has_turn(core, spec.log):
        return None
    core.writer = _writer(core, spec.log, 0)
    if spec.keep_context:
        before = conversation(spec.log, core.context_id, before=spec.task_id)
        core.states[None] = await _until_end(core, before) or core.states[None]
    return None


async def _load_run(core: Core, event_log: EventLog) -> Event | None:
    # An attempt that is cancelled before it began is loaded all the same: its end belongs into the log.
    events = await _until_end(core, reading(event_log.read(core.task_id)), GRACE)
    if events is None:
        return None
    core.context_id = events[0].context_id
    # A cancel adds nothing to the conversation, and need not wait for the run that goes on there.
    if core.spec.cancel is None and not _occupied(core, event_log):
        await _until_end(core, _turn(core, event_log))
        # Somebody may have gone on with this run meanwhile.
        events = await _until_end(core, reading(event_log.read(core.task_id)), GRACE)
        if events is None or (not core.occupies and fold_all(events).state == "working"):
            return None
    before = await _until_end(core, conversation(event_log, core.context_id, before=core.task_id), GRACE)
    if before is None:
        return None
    core.states[None] = before
    return _take_up(core, event_log, events)


def _end_before_it_began(core: Core) -> Event:
    """The end of an attempt of which the log has nothing, and that has taken nothing from it."""
    if core.spec.cancel is None and (core.spec.fork is not None or isinstance(core.end, Canceled)):
        # Who gives an attempt up is told that; the run is as it was.
        return final_event(core, core.end)
    how = core.spec.cancel or core.end
    return unrecorded_end(core, EventLogError(f"the attempt had to end ({how}) before the log had told of its run"))


async def _load_fork(core: Core, event_log: EventLog, fork: Fork) -> None:
    events = await reading(event_log.read(fork.task_id))
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
        await _until_end(core, _turn(core, event_log))
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


def _release(core: Core) -> None:
    if core.spec.log is not None and core.occupies:
        turns.give_back(core.spec.log, core.context_id)


def _take_up(core: Core, event_log: EventLog, events: Sequence[Event]) -> Event | None:
    spec = core.spec
    _recall(core, events)
    state = fold_all(events, core.states[None], core.born)
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


async def _begin(core: Core) -> None:
    spec = core.spec
    core.open = True
    await _announce(core)
    if spec.fork is not None:
        _part(core, spec.fork)
    try:
        if spec.resume:
            # So that the calls of before can be closed, whatever happens next.
            core.set_tools(dict(spec.tools.plain))
        if core.ended:
            return
        core.system = await _system(core)
        if core.attempt > 1:
            core.set_tools(await _until_end(core, spec.tools.resolve(core.context())) or {})
        if core.ended:
            return
        core.scope.run(_connect, core)
    except Paused:
        # The instructions asked a question, or a family of tools did.
        core.finish(None)
    except Exception as error:
        core.finish(error)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            core.finish(CLOSING)
            return
        core.fail(as_error(error))
        leave_to_loop(error)


def _connect(core: Core) -> None:
    """Feed the run to its pipeline."""
    pipeline = core.spec.loop(emit(RunRequest(core.context())))
    scheduler = RunScheduler(asyncio.get_running_loop(), core.scope)
    core.watch()
    core.subscription.disposable = connect(pipeline, core.publish_signal, core.finish, core.completed, scheduler)
    core.scope.settle()


async def _announce(core: Core) -> None:
    """Publish the first events of the attempt."""
    spec = core.spec
    resumed = core.attempt > 1
    first: list[Event] = []
    if not spec.resume and not resumed:
        task = TaskEvent(
            messages=core.asked(spec.messages),
            model=spec.model.name,
            agent_name=spec.agent_name,
            strategy=spec.strategy,
            metadata=spec.metadata,
        )
        first.append(task)
    after = core.state().seq if resumed else None
    first.append(StatusUpdateEvent(state="working", resumed=resumed, after_seq=after))
    first += [InputReceivedEvent(input_id=input_id, value=value) for input_id, value in core.inputs.items()]
    if spec.resume:
        await _claim(core, first)
        return
    for event in core.past:
        core.take_over(event)
    for event in first:
        core.publish(event)
    core.begun = True


async def _claim(core: Core, first: Sequence[Event]) -> None:
    """Take a run up: whoever gets the first events of the next attempt into the log goes on with it, and nobody else.

    Raises:
        ConflictError: Somebody else was quicker; nothing was done here.
    """
    recorded = [core.record(event) for event in first]
    if core.writer is not None:
        try:
            await _through(core, core.writer.flush)
        except ConflictError as error:
            await core.writer.close()
            raise ConflictError(
                f"the run {core.task_id} was taken up elsewhere at the same moment, and goes on there; nothing was "
                f"done here. follow(log, {core.task_id!r}) shows what it comes to; agent.resume() gives its end later"
            ) from error
    core.begun = True
    for event in (*core.past, *recorded):
        core.hub.publish(event)


def _part(core: Core, fork: Fork) -> None:
    """Put on the stream what a fork has in other words than the run that it is made of."""
    for answer in fork.answers(core.past):
        core.publish(answer)
        # A strategy that runs again finds it here.
        core.recorded_past.results[answer.step or "", answer.index] = answer
    if fork.at > 1 and fork.messages:
        core.close_open()
    for message in fork.added():
        core.publish(message)


async def _system(core: Core) -> tuple[Message, ...]:
    instructions = core.spec.instructions
    text: Any = instructions
    if not isinstance(instructions, str):
        name = f"the instructions {getattr(instructions, '__name__', 'function')}()"
        ctx = core.context()
        text = await _until_end(core, within(ctx, called(instructions, ctx), name))
        if not isinstance(text, str) and not core.ended:
            raise ConfigurationError(f"{name} gave {text!r}: they have to give a text")
    texts = [part for part in (text, core.spec.output_prompt) if part]
    return (Message.system("\n\n".join(texts)),) if texts else ()


async def _wait(core: Core) -> None:
    try:
        await core.until_end()
    except asyncio.CancelledError:
        core.finish(CLOSING)


async def _through(core: Core, step: Callable[[], Awaitable[T]]) -> T:
    """Carry out a step that an event loop which is closing must not cut off, though it cancels it."""
    while True:
        try:
            return await step()
        except asyncio.CancelledError:
            core.finish(CLOSING)


async def _finish(core: Core) -> None:
    try:
        core.subscription.dispose()
    except BaseException as error:
        # What somebody's Disposable does must not keep the run from its end.
        log.exception("the pipeline of the run %s could not be disposed by %s", core.task_id, raiser(error))
        leave_to_loop(error)
        core.scope.stop()
    stuck = await _through(core, lambda: core.scope.join(GRACE))
    if stuck:
        log.error("after %s s the run %s leaves behind: %s", GRACE, core.task_id, ", ".join(stuck))
    if core.end is None and core.state().done:
        misfit = core.parsed(core.state().content)[1]
        core.end = InvalidOutput(misfit) if misfit is not None else None
    paused = core.end is None and bool(core.state().pending)
    lost = core.writer is not None and core.writer.error is not None
    if not paused and not lost:
        core.close_open()
    final = core.record(final_event(core, core.end))
    # Nothing may come behind it while it is made durable.
    core.open = False
    if core.writer is not None:
        try:
            await _through(core, core.writer.flush)
        except EventLogError as error:
            log.error("the run %s could not be recorded to its end: %s", core.task_id, error)
            told = unrecorded_end(core, error)
            final = told.model_copy(update={name: getattr(final, name) for name in _ENVELOPE})
        await _through(core, core.writer.close)
    _publish_end(core, final)


def _publish_end(core: Core, final: Event) -> None:
    settle(final)
    core.final = final
    core.hub.publish(final)
    core.hub.complete()


_ENVELOPE = ("context_id", "task_id", "seq", "sub", "attempt", "timestamp")
