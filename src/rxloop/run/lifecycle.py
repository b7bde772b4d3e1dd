"""The life of an attempt: load, begin, wait, finish. The one way in which every attempt ends is here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    EventLogError,
    InvalidOutput,
    Paused,
)
from rxloop.pipeline.requests import RunRequest
from rxloop.pipeline.seams import EventLog
from rxloop.protocol.events import Event, InputReceivedEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.protocol.settle import settle
from rxloop.run.attempt import Core
from rxloop.run.endings import final_event, unrecorded_end
from rxloop.run.spec import CLOSING
from rxloop.state.limits import LimitHit
from rxloop.stream.bridges import emit
from rxloop.stream.connect import connect
from rxloop.stream.guard import as_error, leave_to_loop, raiser
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import GRACE

if TYPE_CHECKING:
    from rxloop.run.fork import Fork

log = logging.getLogger("rxloop")

T = TypeVar("T")


async def drive(core: Core) -> None:
    """Carry out one attempt. Whatever happens, the stream of the run ends.

    An exception here is a run that was refused before its first event; everything later is an event.
    """
    timer = _time_limit(core)
    try:
        finished = None if core.spec.log is None else await _load(core, core.spec.log)
        if finished is not None:
            _publish_end(core, finished)
            return
        if core.spec.log is not None and core.writer is None:
            # It had to end before its turn, or before the log told where it stands: nothing of it can be recorded.
            from rxloop.run.loading import end_before_it_began

            _publish_end(core, core.record(end_before_it_began(core)))
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
        if core.occupies:
            from rxloop.run.loading import release

            release(core)
        core.scope.close()


async def _load(core: Core, event_log: EventLog) -> Event | None:
    # Not before it is needed: a run without a log has nothing to load, and importing rxloop is quicker without.
    from rxloop.run.loading import load

    return await load(core, event_log)


def _time_limit(core: Core) -> asyncio.TimerHandle | None:
    seconds = core.limits.seconds
    if seconds is None:
        return None
    late = LimitHit("timeout", f"the run took longer than {seconds} s (limits.seconds)")
    return asyncio.get_running_loop().call_later(seconds, core.finish, late)


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
            from rxloop.run.loading import until_end

            core.set_tools(await until_end(core, spec.tools.resolve(core.context())) or {})
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
        # Not before it is needed: importing rxloop is quicker without.
        from rxloop.run.loading import until_end
        from rxloop.stream.within import called, within

        name = f"the instructions {getattr(instructions, '__name__', 'function')}()"
        ctx = core.context()
        text = await until_end(core, within(ctx, called(instructions, ctx), name))
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
