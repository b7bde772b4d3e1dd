"""Starting attempts: publishing the first events, resolving instructions and tools, connecting the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from rxloop.errors import Paused
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.requests import Operator, RunRequest
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.model import make_unchecked
from rxloop.run.attempt import Attempt
from rxloop.run.lifetime import Released
from rxloop.stream.rx import PipelineStopped, RunScheduler, choose, connect
from rxloop.stream.sources import emit
from rxloop.support.foreign_errors import free_memory, is_out_of_memory, leave_to_loop, to_error
from rxloop.support.tasks import is_cancelled
from rxloop.support.trace_context import get_trace_context

_make_status = make_unchecked(StatusUpdateEvent)


async def announce(attempt: Attempt) -> None:
    """Publish the first events of the attempt.

    Raises:
        RunExists: A new run using this id was just started elsewhere.
        ConflictError: Another process has resumed the run. Nothing was changed.
        Fenced: The lease was lost.
    """
    first = make_first_events(attempt)
    if attempt.recorder.has_events or attempt.spec.chosen_id:
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
    if not attempt.recorder.has_events:
        yield make_task_event(attempt)
    agent, after = (attempt.spec.agent_name, attempt.state().seq) if resumed else (None, None)
    fields = {"metadata": {COMMAND_ID: attempt.skipped_commands}} if attempt.skipped_commands else attempt.fork_fields
    if resumed and (trace := get_trace_context(attempt.info.metadata)):
        fields = {**fields, "metadata": {**fields.get("metadata", {}), **trace}}
    yield _make_status(state="working", resumed=resumed, after_seq=after, agent_name=agent, **fields)
    yield from attempt.initial_events


async def start_pipeline(attempt: Attempt) -> None:
    """Connect the pipeline unless the run is ending. All errors end the run."""
    lifetime, tools = attempt.lifetime, attempt.spec.tools
    resumed = attempt.resumed
    try:
        if attempt.spec.make_deps is not None and not lifetime.is_ending:
            await _make_deps(attempt, attempt.spec.make_deps)
        if attempt.unpublished_messages or attempt.spec.steering is not None:
            _steer(attempt)
        if resumed:
            # Allows closing calls of earlier attempts, even if resolving the tools fails.
            attempt.tools.replace(tools.plain_tools, (), attempt.context())
        if not lifetime.is_ending:
            await attempt.requests.resolve_system(attempt.context(), lifetime)
        if resumed and not lifetime.is_ending:
            offered = await lifetime.prepare(tools.resolve(attempt.context()))
            if offered is not None:
                attempt.tools.replace(offered.tools, offered.missing, attempt.context())
        if not lifetime.is_ending:
            attempt.info.scope.run(_connect, attempt)
    except Paused:
        # Raised if instructions or toolsets ask a question.
        lifetime.finish(None)
    except Exception as error:
        lifetime.finish(error)
    except PipelineStopped:
        # The run is already ending.
        return
    except BaseException as error:
        if is_cancelled(error):
            lifetime.finish(lifetime.closing_end)
            return
        lifetime.fail(to_error(error))
        leave_to_loop(error)


async def _make_deps(attempt: Attempt, make_deps: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Create the deps. If that fails, release the run, because its deps may be available later or elsewhere."""
    lifetime = attempt.lifetime
    lifetime.limit(None)
    try:
        deps = await lifetime.prepare(make_deps())
    except Exception as error:
        # The caller has the error, because it passed the function.
        is_fatal = is_out_of_memory(error)
        if is_fatal:
            free_memory()
        lifetime.finish(Released(counts=is_fatal or isinstance(error.__cause__, SystemExit)))
        return
    attempt.use_spec(attempt.spec._replace(deps=deps, make_deps=None))
    lifetime.limit(attempt.info.limits.seconds, restart=True)


def _steer(attempt: Attempt) -> None:
    # Imported here because most runs are not steered.
    from rxloop.run.steering import listen, publish_queued

    publish_queued(attempt)
    if attempt.spec.steering is not None and not attempt.lifetime.is_ending:
        attempt.steering = attempt.info.scope.run(listen, attempt, attempt.spec.steering)


def _connect(attempt: Attempt) -> None:
    scheduler = RunScheduler(asyncio.get_running_loop(), attempt.info.scope)
    attempt.watch()
    _feed(attempt, attempt.spec.loop, scheduler)
    attempt.info.scope.check_idle()


def _feed(attempt: Attempt, loop: Operator, scheduler: RunScheduler) -> None:
    """Subscribe to a loop, and end the run when the loop completes.

    If a strategy leaves unread messages, the default loop handles them before the run ends.
    """
    connecting, restarts = True, False

    def on_completed() -> None:
        nonlocal restarts
        if not attempt.has_unread_messages:
            lifetime.finish(budget.find_lost_events(all_branches=True))
        elif connecting:
            restarts = True
        else:
            _feed(attempt, iterate(attempt.spec.pipeline), scheduler)

    lifetime, budget = attempt.lifetime, attempt.info.budget
    pipeline = loop(choose(partial(budget.start, emit(RunRequest(attempt.context())))))
    # It can handle objects other than events.
    publish: Any = attempt.publish
    attempt.subscription.disposable = connect(pipeline, publish, lifetime.finish, on_completed, scheduler)
    connecting = False
    if restarts:
        _feed(attempt, iterate(attempt.spec.pipeline), scheduler)
