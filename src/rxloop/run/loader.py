"""Loading an attempt: acquiring the conversation lease, and reading the run and its conversation from the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rxloop.coordination.answers import (
    check_not_superseded,
    find_credentials,
    find_new_answers,
    is_superseded,
    read_snapshot,
    validate_answers,
)
from rxloop.coordination.inbox import AppliedCommands, Commands, Inbox, apply_commands, find_new_messages, read_goals
from rxloop.coordination.lease import DeliveryGate
from rxloop.coordination.order import check_can_continue
from rxloop.errors import ConfigurationError, ConflictError, RunOver, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import check_complete, read_log
from rxloop.pipeline.records import HistoryQuery, RunRecord, Snapshot, get_conversation, has_started
from rxloop.protocol.commands import GoalsCommand, MessageCommand
from rxloop.protocol.envelope import COMMAND_ID, STARTED_CALLS
from rxloop.protocol.events import Event, InputReceivedEvent, TaskEvent, ToolCompleteEvent
from rxloop.run.admission import Close, acquire_lease, acquire_lease_to_begin, drop_earlier_questions, try_acquire_lease
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import is_over, make_exists_error
from rxloop.run.lifetime import Canceled, Lifetime
from rxloop.run.log_writer import LogWriter
from rxloop.run.steering import send_messages
from rxloop.state.attempt_counts import check_attempts
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.run_state import RunState
from rxloop.storage.conversation import FORMAT, add_page, conversation, find_cached
from rxloop.support.tasks import GRACE
from rxloop.support.threads import compute
from rxloop.support.trace_context import remove_trace_context
from rxloop.thinking.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.run.fork import Fork

log = logging.getLogger("rxloop")

_MAX_SEQ = 2**31 - 1
"""A `seq` larger than any run can reach."""


async def load(attempt: Attempt, event_log: EventLog, close: Close) -> Event | None:
    """Load the run from the log. Return its final event if it has already ended.

    If the attempt must end before being loaded, None is returned and the attempt has no writer.

    Args:
        attempt: Attempt to load.
        event_log: Log to read from.
        close: Async function executing the attempt that ends an earlier run.
    """
    spec = attempt.spec
    attempt.questions.has_inbox = True
    attempt.inbox = Inbox(
        event_log,
        attempt.task_id,
        state=attempt.state,
        is_ending=lambda lifetime=attempt.lifetime: lifetime.is_ending,
        on_cancel=lambda reason, number, lifetime=attempt.lifetime: lifetime.finish(Canceled(reason, number)),
        on_message=partial(_send_command, attempt),
        on_answers=attempt.questions.open.deliver,
    )
    if spec.resume:
        return await _load_run(attempt, event_log, close)
    if spec.chosen_id:
        await attempt.lifetime.prepare(_check_id_is_new(attempt, event_log))
    if spec.fork is not None:
        await attempt.lifetime.prepare(_copy_run(attempt, event_log, spec.fork))
        return None
    if spec.keep_context:
        acquired = await acquire_lease_to_begin(attempt, event_log, close)
    else:
        acquired = await acquire_lease(attempt, event_log)
    if not acquired:
        return None
    if spec.keep_context:
        before = await attempt.lifetime.prepare(conversation(event_log, attempt.conversation, before=spec.task_id))
        if before is not None:
            attempt.recorder.states[None] = before
    _create_writer(attempt, event_log, 0)
    return None


async def _check_id_is_new(attempt: Attempt, event_log: EventLog) -> None:
    """Check that the log has no run using this id. Concurrent writes are detected later, by `announce`.

    Raises:
        RunExists: The id is already in use.
    """
    try:
        # Only checks for existence, without reading any events.
        await read_log(event_log.read, attempt.task_id, after_seq=_MAX_SEQ)
    except UnknownRun:
        return
    raise make_exists_error(attempt.task_id, "is in the log")


async def _load_run(attempt: Attempt, event_log: EventLog, close: Close) -> Event | None:
    prepare, cached = attempt.lifetime.prepare, attempt.spec.cached
    if cached is None:
        # An attempt cancelled before starting is still loaded, so that its end can be logged.
        cached = await prepare(read_snapshot(event_log, attempt.task_id), GRACE)
        if cached is None:
            return None
        if not cached.events:
            check_complete(attempt.task_id, (), 1)
    _check_agent(attempt, cached.record if isinstance(cached, Snapshot) else cached)
    if isinstance(cached, Snapshot):
        _apply_recorded_options(attempt, cached)
        loaded = await _read_with_lease(attempt, event_log, cached.record, cached, close)
    else:
        loaded = await _read_with_lease(attempt, event_log, cached, None, close)
        if loaded is not None:
            _apply_recorded_options(attempt, loaded.snapshot)
    if loaded is None:
        return None
    if attempt.spec.inputs:
        await validate_answers(loaded.snapshot.state, attempt.spec.inputs)
    events = loaded.snapshot.events

    def fold() -> tuple[EarlierAttempts, ThoughtGraph]:
        return EarlierAttempts(events, loaded.before), ThoughtGraph.of(events)

    return _resume(attempt, event_log, loaded, *await compute(fold, steps=len(events)))


def _check_agent(attempt: Attempt, record: RunRecord) -> None:
    """Check that the run was started by this agent. Any agent may cancel it.

    Raises:
        ConfigurationError: It was started by an agent with another name.
    """
    name, expected = attempt.spec.agent_name, record.agent_name
    if attempt.spec.cancel is None and expected not in ("", name):
        raise ConfigurationError(
            f"run {record.task_id} belongs to agent {expected!r}, and agent {name!r} must not continue it: use that "
            f"agent, or agent.with_name({expected!r}) if it was renamed"
        )


class _LoadedRun(NamedTuple):
    """Run and conversation state, read while holding the lease."""

    snapshot: Snapshot
    before: RunState
    """State left by earlier runs of the conversation."""


async def _read_with_lease(
    attempt: Attempt, event_log: EventLog, record: RunRecord, previous: Snapshot | None, close: Close
) -> _LoadedRun | None:
    """Acquire the lease, and read the run again. Return None if the attempt must end first.

    Args:
        attempt: Attempt to load.
        event_log: Log to read from.
        record: Last known record of the run.
        previous: Last known snapshot, so that only newer events are read.
        close: Async function executing the attempt that ends an earlier run.

    Raises:
        ContextBusy: See `acquire_lease` and `drop_earlier_questions`.
        ConflictError: The attempt only cancels the run, and another attempt in this process has just started.
    """
    attempt.join_conversation(record.context_id, record.owner)
    if attempt.spec.cancel is not None:
        # Cancelling adds nothing to the conversation, so there is no need to wait for other runs.
        await attempt.lifetime.prepare(try_acquire_lease(attempt, event_log), GRACE)
        if attempt.lease is not None and not attempt.lease.try_lock_run():
            # The other attempt reads the cancel command. Two attempts that append would end each other with a conflict.
            raise ConflictError(f"run {attempt.task_id} has just been resumed in this process")
        return await _read_run(attempt, event_log, previous)
    if previous is not None and is_over(previous.events[-1]):
        return await _read_run(attempt, event_log, previous)
    while True:
        acquired = await acquire_lease(attempt, event_log)
        # The run may have been resumed elsewhere while we were waiting.
        loaded = await _read_run(attempt, event_log, previous)
        if loaded is None or not acquired:
            return None if loaded is None or loaded.snapshot.state.state == "working" else loaded
        snapshot = loaded.snapshot
        if not snapshot.waiting or attempt.lifetime.is_ending or is_over(snapshot.events[-1]):
            return loaded
        if has_started(snapshot.record.state, snapshot.record.seq) or _is_cancelled(snapshot):
            # The attempt has already dropped these questions, or will end without starting.
            return loaded
        if await drop_earlier_questions(attempt, event_log, snapshot.waiting, close):
            return await _read_run(attempt, event_log, snapshot)


async def _read_run(attempt: Attempt, event_log: EventLog, previous: Snapshot | None) -> _LoadedRun | None:
    """Read the run and its conversation. When passed an earlier snapshot, only reads newer events.

    Raises:
        EventLogError: One of the latest events can't be read.
    """
    prepare, task_id, key = attempt.lifetime.prepare, attempt.task_id, attempt.conversation
    if attempt.inbox is not None:
        attempt.inbox.mark_seen()
    cached = find_cached(event_log, key)
    history = HistoryQuery(cached[0], FORMAT)
    snapshot = await prepare(read_snapshot(event_log, task_id, since=previous, history=history), GRACE)
    if snapshot is None or snapshot.history is None:
        return None
    events = snapshot.events
    if not events or snapshot.record.seq > events[-1].seq:
        check_complete(task_id, events, max(1, snapshot.record.seq))
    before = await prepare(add_page(event_log, key, task_id, cached, snapshot.history), GRACE)
    return None if before is None else _LoadedRun(snapshot, before)


def _is_cancelled(snapshot: Snapshot) -> bool:
    """Return True if the run has a pending cancel command."""
    return apply_commands(snapshot.task_id, snapshot.state, snapshot.new_commands, warn=False).cancel is not None


def _apply_recorded_options(attempt: Attempt, snapshot: Snapshot) -> None:
    """Apply options recorded in the `task` event, unless the run has ended."""
    task, apply_recorded_options = next(iter(snapshot.events), None), attempt.spec.apply_recorded_options
    if apply_recorded_options is None or not isinstance(task, TaskEvent) or task.options is None:
        return
    if snapshot.state.retryable or not snapshot.state.finished:
        attempt.use_spec(apply_recorded_options(task.options))
        attempt.lifetime.limit(attempt.info.limits.seconds)


def _resume(
    attempt: Attempt, event_log: EventLog, loaded: _LoadedRun, earlier: EarlierAttempts, graph: ThoughtGraph
) -> Event | None:
    """Resume a run as its next attempt. Return its final event if it can't be resumed."""
    spec, events = attempt.spec, loaded.snapshot.events
    state = earlier.state
    if spec.cancel is None and (state.retryable or not state.finished):
        check_complete(attempt.task_id, events, state.seq)
    if state.state == "submitted":
        # A submitted run hasn't been started, so this is its first attempt, which includes the `task` event.
        attempt.earlier_events = events
    _resume_recorder(attempt, earlier, graph, events[0], state.attempt + (state.state != "submitted"))
    inputs = spec.inputs or {}
    stays_idle = spec.only_executes or spec.cancel is not None
    if attempt.lifetime.is_ending and is_superseded(state):
        # Ignore answers, because the run is ending anyway.
        inputs = {}
    elif not stays_idle:
        check_not_superseded(attempt.task_id, state)
    answers = find_new_answers(attempt.task_id, state, inputs)
    attempt.credentials.update(find_credentials(state, inputs))
    # Remove consumed inputs, because credentials should be kept in as few places as possible.
    attempt.use_spec(spec._replace(inputs=None, apply_recorded_options=None, cached=None))
    attempt.initial_events = [
        earlier.address_answer(InputReceivedEvent(input_id=input_id, value=value))
        for input_id, value in answers.items()
    ]
    if (state.finished and not state.retryable) or (stays_idle and (state.finished or state.state == "canceled")):
        # The run may have just become idle. Executing or ending it must leave it that way.
        return events[-1]
    commands = () if is_over(events[-1]) else loaded.snapshot.new_commands
    if attempt.inbox is not None:
        attempt.inbox.skip_applied(commands[-1][0] if commands else state.last_command)
    applied = _apply_commands(attempt, state.replace(answers={**state.answers, **answers}), commands)
    if not attempt.lifetime.is_ending:
        check_can_continue(loaded.snapshot, applied, asks=spec.on_input is not None, has_inputs=bool(inputs))
    if spec.cancel is None:
        _warn_about_strategy(attempt, events[0])
        limit = check_attempts(state, attempt.info.limits)
        if limit is not None and state.state != "submitted":
            attempt.lifetime.finish(limit)
    _create_writer(attempt, event_log, state.seq)
    return None


def _apply_commands(attempt: Attempt, state: RunState, commands: Commands) -> AppliedCommands:
    """Apply pending commands, unless the run is ending anyway."""
    applied = apply_commands(
        attempt.task_id, state, [(number, command) for number, command in commands if number > state.last_command]
    )
    if applied.cancel is not None and attempt.spec.cancel is not None:
        # This attempt was created to cancel the run, and here is the command.
        attempt.lifetime.revise(Canceled(*applied.cancel))
    elif applied.cancel is not None:
        attempt.lifetime.finish(Canceled(*applied.cancel))
    if not attempt.lifetime.is_ending:
        address = attempt.recorder.earlier.address_answer
        new_events = [address(event) if isinstance(event, InputReceivedEvent) else event for event in applied.events]
        attempt.initial_events = (*attempt.initial_events, *new_events)
        attempt.credentials.update(applied.credentials)
        attempt.skipped_commands = applied.skipped
    return applied


def _send_command(attempt: Attempt, number: int, command: MessageCommand | GoalsCommand) -> None:
    if isinstance(command, GoalsCommand):
        attempt.publish(read_goals(attempt.task_id, attempt.state(), number, command))
        return
    messages = find_new_messages(attempt.state(), command)
    try:
        if messages:
            send_messages(attempt, messages, interrupt=command.interrupt, metadata={COMMAND_ID: number})
    except RunOver as error:
        log.debug("Leaving command %s to the next attempt: %s", number, error)
    except ConfigurationError as error:
        log.warning("Skipping command %s for run %s: %s", number, attempt.task_id, error)


async def _copy_run(attempt: Attempt, event_log: EventLog, fork: Fork) -> None:
    """Continue as the next attempt of a copied run. Copied events are logged along with the first new events."""
    originals = await fork.read_originals(event_log)
    first = originals[0][0]
    before = await conversation(event_log, get_conversation(first), before=fork.task_id)
    attempt.join_conversation(attempt.context_id, first.owner if isinstance(first, TaskEvent) else None)
    copy = partial(
        fork.copy_and_free,
        originals,
        before.messages,
        task_id=attempt.task_id,
        context_id=attempt.context_id,
        agent_name=attempt.info.agent_name,
        model=attempt.info.model.name,
        options=attempt.spec.recorded_options,
        metadata={**remove_trace_context(first.metadata), **attempt.spec.metadata},
        prepare=attempt.prepare_messages,
        tools=attempt.spec.tools.plain_tools,
    )
    copied = await compute(copy)
    attempt.earlier_events = copied.events
    if not await acquire_lease(attempt, event_log):
        return
    earlier, graph = await compute(copied.fold)
    earlier.started_calls.update(copied.started_calls)
    earlier.discard(copied.discarded, copied.events)
    attempt.fork_fields = {
        **({"discarded": copied.discarded} if copied.discarded else {}),
        **({"metadata": {STARTED_CALLS: copied.started_calls}} if copied.started_calls else {}),
    }
    _resume_recorder(attempt, earlier, graph, copied.events[0], earlier.state.attempt + 1)
    attempt.initial_events = _make_changes(attempt, fork, copied.results)
    _create_writer(attempt, event_log, 0)


def _make_changes(attempt: Attempt, fork: Fork, answers: Sequence[ToolCompleteEvent]) -> Iterator[Event]:
    """Yield a fork's changes. Each event must be folded before requesting the next."""
    for answer in answers:
        # Lets a repeated strategy find the result.
        attempt.recorder.earlier.results[answer.step or "", answer.index] = answer
        yield answer
    if fork.added:
        yield from attempt.close_open_work()
        yield from fork.added


def _resume_recorder(
    attempt: Attempt, earlier: EarlierAttempts, graph: ThoughtGraph, first: Event, number: int
) -> None:
    attempt.recorder.resume(earlier, graph, number)
    attempt.info.metadata = {**first.metadata, **attempt.spec.metadata}


def _create_writer(attempt: Attempt, event_log: EventLog, durable_seq: int) -> None:
    if attempt.lease is not None and attempt.lease.lost is not None:
        # Another process owns the run, so recording an end would be wrong.
        return
    # Avoid a reference cycle, which would keep every attempt in memory until garbage collection.
    on_failure = partial(_handle_write_error, attempt.lifetime, attempt.recorder.delivery)
    attempt.recorder.writer = LogWriter(event_log, attempt.task_id, durable_seq, on_failure, attempt.info.scope.gate)


def _handle_write_error(lifetime: Lifetime, delivery: DeliveryGate, error: Exception) -> None:
    """End an attempt after failing to write its events."""
    if isinstance(error, ConflictError):
        # Another process owns the run, so subscribers must not receive any more of our events.
        delivery.drop()
    lifetime.finish(error)


def _warn_about_strategy(attempt: Attempt, task: Event) -> None:
    """Warn when resuming with a different strategy, which is an easy mistake with `run(strategy=)`."""
    recorded = task.strategy if isinstance(task, TaskEvent) else None
    if recorded != attempt.spec.strategy:
        log.warning(
            "Run %s was started using %s, but is being resumed using %s: pass agent.resume(..., strategy=) to keep it",
            attempt.task_id,
            recorded or "no strategy",
            attempt.spec.strategy or "none",
        )
