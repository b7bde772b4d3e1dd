"""How an attempt begins: its first events, then its instructions and tools, then its pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rxloop.errors import ConfigurationError, ConflictError, EventLogError, Fenced, Paused
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.requests import Operator, RunRequest
from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.protocol.model import EMPTY_DICT, unchecked
from rxloop.run.attempt import Attempt
from rxloop.run.ends import run_exists
from rxloop.run.life import CLOSING
from rxloop.state.run_state import MAIL_ID
from rxloop.stream.rx import RunScheduler, connect
from rxloop.stream.sources import emit
from rxloop.support.foreign_errors import leave_to_loop, to_error

_status = unchecked(StatusUpdateEvent)


async def announce(attempt: Attempt) -> None:
    """Publish the first events of the attempt.

    Raises:
        ConflictError: Somebody else was quicker to go on with the run, or to begin one of this id; nothing was done
            here.
        Fenced: The turn was lost.
    """
    first = first_events(attempt)
    if attempt.recorder.begun or attempt.spec.chosen_id:
        await _claim(attempt, first)
    else:
        for event in first:
            attempt.publish(event)


def task_event(attempt: Attempt) -> TaskEvent:
    """The first event of a new run."""
    spec = attempt.spec
    return TaskEvent(
        initiator=spec.initiator,
        messages=attempt.asked(spec.messages),
        model=spec.model.name,
        agent_name=spec.agent_name,
        strategy=spec.strategy,
        owner=spec.owner,
        options=spec.begun_with,
        metadata=spec.metadata,
    )


def first_events(attempt: Attempt) -> Iterator[Event]:
    """What the attempt says at its beginning, each event once the one before it is folded."""
    resumed = attempt.resumed
    if not attempt.recorder.begun:
        yield task_event(attempt)
    after = attempt.state().seq if resumed else None
    metadata = {MAIL_ID: attempt.passed} if attempt.passed else EMPTY_DICT
    yield _status(state="working", resumed=resumed, after_seq=after, metadata=metadata)
    yield from attempt.news


async def _claim(attempt: Attempt, first: Iterator[Event]) -> None:
    """Take a run up: whoever gets the first events of the attempt into the log goes on with it, and nobody else.

    What the log does not have of the past, since it is taken over of another run, goes into it by the same write.
    """
    recorder, writer = attempt.recorder, attempt.recorder.writer
    if writer is not None:
        for event in attempt.past:
            if event.seq > writer.durable_seq:
                writer.add(event)
    recorded = [recorder.record(event) for event in first]
    # One that has nothing to do but to end is written as a whole: nobody is to see it under way.
    ends_at_once = recorder.begun and attempt.life.ending
    if writer is not None and not ends_at_once:
        try:
            await attempt.life.insist(writer.flush)
        except ConflictError as error:
            await writer.close()
            if isinstance(error, Fenced) and not await _is_in_another_conversation(attempt):
                raise
            run = attempt.task_id
            if attempt.spec.chosen_id:
                raise run_exists(run, "was begun elsewhere at the same moment") from error
            raise ConflictError(
                f"the run {run} was taken up elsewhere at the same moment, and goes on there; nothing was done here. "
                f"follow(log, {run!r}) shows what it comes to; agent.resume() gives its end later"
            ) from error
    for event in (*attempt.past, *recorded):
        recorder.hub.publish(event)


async def _is_in_another_conversation(attempt: Attempt) -> bool:
    """Return True if the log has a run of the chosen id in another conversation.

    The owner of that conversation keeps every other process out, and this one had no lease of it to lose.
    """
    log = attempt.log
    if log is None or not attempt.spec.chosen_id:
        return False
    try:
        record = await read_log(log.get_record, attempt.task_id)
    except EventLogError:
        return False
    return record.context_id != attempt.context_id


async def begin(attempt: Attempt) -> None:
    """Feed the run to its pipeline, unless it has to end before; what fails on the way is its end."""
    life, tools = attempt.life, attempt.spec.tools
    resumed = attempt.resumed
    try:
        if attempt.said or attempt.spec.steering is not None:
            _steer(attempt)
        if resumed:
            # So that the calls of before can be closed, whatever happens next.
            attempt.tools.replace(tools.plain, (), attempt.context())
        if not life.ending:
            attempt.requests.system = await _system(attempt)
        if resumed and not life.ending:
            offered = await life.prepare(tools.resolve(attempt.context()))
            if offered is not None:
                attempt.tools.replace(offered.tools, offered.missing, attempt.context())
        if not life.ending:
            attempt.scope.run(_connect, attempt)
    except Paused:
        # The instructions asked a question, or a family of tools did.
        life.finish(None)
    except Exception as error:
        life.finish(error)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            life.finish(CLOSING)
            return
        life.fail(to_error(error))
        leave_to_loop(error)


async def _system(attempt: Attempt) -> tuple[Message, ...]:
    instructions = attempt.spec.instructions
    text: Any = instructions
    if not isinstance(instructions, str):
        # Imported here: importing rxloop is quicker without.
        from rxloop.pipeline.time_limits import limit_time
        from rxloop.support.threads import call_user_function

        name = f"the instructions {getattr(instructions, '__name__', 'function')}()"
        ctx = attempt.context()
        text = await attempt.life.prepare(limit_time(ctx, lambda: call_user_function(instructions, ctx), name))
        if not isinstance(text, str) and not attempt.life.ending:
            raise ConfigurationError(f"{name} gave {text!r}: they have to give a text")
    texts = [part for part in (text, attempt.spec.output_prompt) if part]
    return (Message.system("\n\n".join(texts)),) if texts else ()


def _steer(attempt: Attempt) -> None:
    # Imported here: most runs are not steered, and importing rxloop is quicker without.
    from rxloop.run.steering import listen, speak

    speak(attempt)
    if attempt.spec.steering is not None and not attempt.life.ending:
        attempt.steering = attempt.scope.run(listen, attempt, attempt.spec.steering)


def _connect(attempt: Attempt) -> None:
    scheduler = RunScheduler(asyncio.get_running_loop(), attempt.scope)
    attempt.watch()
    _feed(attempt, attempt.spec.loop, scheduler)
    attempt.scope.settle()


def _feed(attempt: Attempt, loop: Operator, scheduler: RunScheduler) -> None:
    """Feed the run to a loop. When that has nothing more to do, the run is at its end, unless somebody has said more.

    The usual loop has looked for that itself. Another one, such as a strategy, may not have: then the usual one goes on
    from there.
    """
    connecting, again = True, False

    def completed() -> None:
        nonlocal again
        if not attempt.unheard:
            attempt.life.completed()
        elif connecting:
            again = True
        else:
            _feed(attempt, iterate(attempt.spec.pipeline), scheduler)

    pipeline = loop(emit(RunRequest(attempt.context())))
    life = attempt.life
    # It sees for itself what is no event.
    publish: Any = attempt.publish
    attempt.subscription.disposable = connect(pipeline, publish, life.finish, completed, scheduler)
    connecting = False
    if again:
        _feed(attempt, iterate(attempt.spec.pipeline), scheduler)
