"""How an attempt begins: its first events, then its instructions and tools, then its pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rxloop.errors import Paused
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.requests import Operator, RunRequest
from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.model import EMPTY_DICT, make_unchecked
from rxloop.run.attempt import Attempt
from rxloop.run.life import CLOSING
from rxloop.state.run_state import COMMAND_ID
from rxloop.stream.rx import RunScheduler, connect
from rxloop.stream.sources import emit
from rxloop.support.foreign_errors import leave_to_loop, to_error

_status = make_unchecked(StatusUpdateEvent)


async def announce(attempt: Attempt) -> None:
    """Publish the first events of the attempt.

    Raises:
        ConflictError: Somebody else was quicker to go on with the run, or to begin one of this id; nothing was done
            here.
        Fenced: The turn was lost.
    """
    first = first_events(attempt)
    if attempt.recorder.begun or attempt.spec.chosen_id:
        # Imported here, because few runs without a log have a chosen id.
        from rxloop.run.admission import claim_run

        await claim_run(attempt, first)
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
    metadata = {COMMAND_ID: attempt.skipped_commands} if attempt.skipped_commands else EMPTY_DICT
    yield _status(state="working", resumed=resumed, after_seq=after, metadata=metadata)
    yield from attempt.first_news


async def begin(attempt: Attempt) -> None:
    """Feed the run to its pipeline, unless it has to end before; what fails on the way is its end."""
    life, tools = attempt.life, attempt.spec.tools
    resumed = attempt.resumed
    try:
        if attempt.unpublished_messages or attempt.spec.steering is not None:
            _steer(attempt)
        if resumed:
            # So that the calls of before can be closed, whatever happens next.
            attempt.tools.replace(tools.plain_tools, (), attempt.context())
        if not life.ending:
            await attempt.requests.resolve_system(attempt.context(), life)
        if resumed and not life.ending:
            offered = await life.prepare(tools.resolve(attempt.context()))
            if offered is not None:
                attempt.tools.replace(offered.tools, offered.missing, attempt.context())
        if not life.ending:
            attempt.info.scope.run(_connect, attempt)
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


def _steer(attempt: Attempt) -> None:
    # Imported here: most runs are not steered, and importing rxloop is quicker without.
    from rxloop.run.steering import listen, speak

    speak(attempt)
    if attempt.spec.steering is not None and not attempt.life.ending:
        attempt.steering = attempt.info.scope.run(listen, attempt, attempt.spec.steering)


def _connect(attempt: Attempt) -> None:
    scheduler = RunScheduler(asyncio.get_running_loop(), attempt.info.scope)
    attempt.watch()
    _feed(attempt, attempt.spec.loop, scheduler)
    attempt.info.scope.check_idle()


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
