"""Starting attempts: publishing the first events, resolving instructions and tools, connecting the pipeline."""

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
from rxloop.run.lifetime import CLOSING
from rxloop.state.run_state import COMMAND_ID
from rxloop.stream.rx import RunScheduler, connect
from rxloop.stream.sources import emit
from rxloop.support.foreign_errors import leave_to_loop, to_error

_status = make_unchecked(StatusUpdateEvent)


async def announce(attempt: Attempt) -> None:
    """Publish the first events of the attempt.

    Raises:
        RunExists: A new run using this id was just started elsewhere.
        ConflictError: Another process has resumed the run. Nothing was changed.
        Fenced: The lease was lost.
    """
    first = make_first_events(attempt)
    if attempt.recorder.begun or attempt.spec.chosen_id:
        # Imported here because few runs without a log have a chosen id.
        from rxloop.run.admission import claim_run

        await claim_run(attempt, first)
    else:
        for event in first:
            attempt.publish(event)


def make_task_event(attempt: Attempt) -> TaskEvent:
    """Create the first event of a new run."""
    spec = attempt.spec
    return TaskEvent(
        initiator=spec.initiator,
        messages=attempt.prepare_messages(spec.messages),
        model=spec.model.name,
        agent_name=spec.agent_name,
        strategy=spec.strategy,
        owner=spec.owner,
        options=spec.recorded_options,
        metadata=spec.metadata,
    )


def make_first_events(attempt: Attempt) -> Iterator[Event]:
    """Yield the first events of the attempt. Each one must be folded before requesting the next."""
    resumed = attempt.resumed
    if not attempt.recorder.begun:
        yield make_task_event(attempt)
    after = attempt.state().seq if resumed else None
    metadata = {COMMAND_ID: attempt.skipped_commands} if attempt.skipped_commands else EMPTY_DICT
    yield _status(state="working", resumed=resumed, after_seq=after, metadata=metadata)
    yield from attempt.initial_events


async def begin(attempt: Attempt) -> None:
    """Connect the run to its pipeline unless it must end first. Any error ends the run."""
    life, tools = attempt.life, attempt.spec.tools
    resumed = attempt.resumed
    try:
        if attempt.unpublished_messages or attempt.spec.steering is not None:
            _steer(attempt)
        if resumed:
            # Allows closing calls of earlier attempts, even if resolving the tools fails.
            attempt.tools.replace(tools.plain_tools, (), attempt.context())
        if not life.is_ending:
            await attempt.requests.resolve_system(attempt.context(), life)
        if resumed and not life.is_ending:
            offered = await life.prepare(tools.resolve(attempt.context()))
            if offered is not None:
                attempt.tools.replace(offered.tools, offered.missing, attempt.context())
        if not life.is_ending:
            attempt.info.scope.run(_connect, attempt)
    except Paused:
        # Instructions or toolsets may ask questions.
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
    # Imported here because most runs are not steered.
    from rxloop.run.steering import listen, publish_queued

    publish_queued(attempt)
    if attempt.spec.steering is not None and not attempt.life.is_ending:
        attempt.steering = attempt.info.scope.run(listen, attempt, attempt.spec.steering)


def _connect(attempt: Attempt) -> None:
    scheduler = RunScheduler(asyncio.get_running_loop(), attempt.info.scope)
    attempt.watch()
    _feed(attempt, attempt.spec.loop, scheduler)
    attempt.info.scope.check_idle()


def _feed(attempt: Attempt, loop: Operator, scheduler: RunScheduler) -> None:
    """Connect the run to a loop. Once the loop completes, the run ends unless there are unread messages.

    The default loop handles such messages itself. After another loop, such as a strategy, the default loop continues.
    """
    connecting, again = True, False

    def on_completed() -> None:
        nonlocal again
        if not attempt.unheard:
            attempt.life.complete()
        elif connecting:
            again = True
        else:
            _feed(attempt, iterate(attempt.spec.pipeline), scheduler)

    pipeline = loop(emit(RunRequest(attempt.context())))
    life = attempt.life
    # It can handle objects other than events.
    publish: Any = attempt.publish
    attempt.subscription.disposable = connect(pipeline, publish, life.finish, on_completed, scheduler)
    connecting = False
    if again:
        _feed(attempt, iterate(attempt.spec.pipeline), scheduler)
