"""What an attempt begins with: its turn in the conversation, and what the log has of the run and what came before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rxloop.coordination.answers import check_not_superseded, find_credentials, is_superseded, new_answers
from rxloop.coordination.inbox import AppliedCommands, Commands, Inbox, apply_commands, find_new_messages
from rxloop.coordination.lease import DeliveryGate
from rxloop.coordination.order import check_can_continue
from rxloop.errors import ConfigurationError, ConflictError, RunOver, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import check_whole, read_log
from rxloop.pipeline.records import HistoryQuery, RunRecord, Snapshot, has_begun
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.events import Event, InputReceivedEvent, TaskEvent, ToolCompleteEvent, normalise
from rxloop.run.admission import (
    Close,
    acquire_lease,
    acquire_lease_to_begin,
    drop_earlier_questions,
    try_acquire_lease,
)
from rxloop.run.attempt import Attempt
from rxloop.run.ends import is_over, run_exists
from rxloop.run.life import Canceled, Life
from rxloop.run.log_writer import LogWriter
from rxloop.run.steering import say
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.fold import fold_all
from rxloop.state.run_state import COMMAND_ID, RunState, check_attempts
from rxloop.storage.conversation import FORMAT, add_page, conversation, find_cached
from rxloop.support.tasks import GRACE
from rxloop.thinking.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.run.fork import Fork

log = logging.getLogger("rxloop")

_BEYOND = 2**31 - 1
"""A `seq` that no run comes to."""


async def load(attempt: Attempt, event_log: EventLog, close: Close) -> Event | None:
    """Fold what the log has; give the final event of a run that is over already.

    Without such an event, and without a writer, the attempt had to end before it was loaded.

    Args:
        attempt: What is loaded.
        event_log: The log.
        close: Executes the attempt that ends a run whose questions this one drops.
    """
    spec = attempt.spec
    attempt.questions.has_inbox = True
    attempt.inbox = Inbox(
        event_log,
        attempt.task_id,
        state=attempt.state,
        is_ending=lambda life=attempt.life: life.ending,
        on_cancel=lambda reason, number, life=attempt.life: life.finish(Canceled(reason, number)),
        on_message=partial(_say, attempt),
        on_answers=attempt.questions.open.take,
    )
    if spec.resume:
        return await _load_run(attempt, event_log, close)
    if spec.chosen_id:
        await attempt.life.prepare(_see_that_it_is_new(attempt, event_log))
    if spec.fork is not None:
        await attempt.life.prepare(_copy_run(attempt, event_log, spec.fork))
        return None
    if spec.keep_context:
        acquired = await acquire_lease_to_begin(attempt, event_log, close)
    else:
        acquired = await acquire_lease(attempt, event_log)
    if not acquired:
        return None
    if spec.keep_context:
        before = await attempt.life.prepare(conversation(event_log, attempt.context_id, before=spec.task_id))
        if before is not None:
            attempt.recorder.states[None] = before
    _write_after(attempt, event_log, 0)
    return None


async def _see_that_it_is_new(attempt: Attempt, event_log: EventLog) -> None:
    """See that the log has no run of this id; should another process write one by now, `announce` finds out.

    Raises:
        RunExists: It has.
    """
    try:
        # None of its events is wanted.
        await read_log(event_log.read, attempt.task_id, after_seq=_BEYOND)
    except UnknownRun:
        return
    raise run_exists(attempt.task_id, "is in the log")


async def _load_run(attempt: Attempt, event_log: EventLog, close: Close) -> Event | None:
    prepare, known = attempt.life.prepare, attempt.spec.known
    if known is None:
        # An attempt that is cancelled before it began is loaded all the same: its end belongs into the log.
        known = await prepare(read_log(event_log.snapshot, attempt.task_id), GRACE)
        if known is None:
            return None
        if not known.events:
            check_whole(attempt.task_id, (), 1)
    if isinstance(known, Snapshot):
        _go_on_as_begun(attempt, known.events)
        found = await _read_in_turn(attempt, event_log, known.record, known, close)
    else:
        found = await _read_in_turn(attempt, event_log, known, None, close)
        if found is not None:
            _go_on_as_begun(attempt, found.snapshot.events)
    return None if found is None else _take_up(attempt, event_log, found)


class _Found(NamedTuple):
    """What the log has of a run when its attempt has the turn."""

    snapshot: Snapshot
    before: RunState
    """The state that the earlier runs of the conversation leave."""


async def _read_in_turn(
    attempt: Attempt, event_log: EventLog, record: RunRecord, seen: Snapshot | None, close: Close
) -> _Found | None:
    """Take the turn, and read what decides how the run goes on; None if the attempt has to end before.

    Args:
        attempt: The attempt.
        event_log: The log.
        record: Where the run stood.
        seen: What is known of it: only what came after that is read.
        close: Executes the attempt that ends a run whose questions this one drops.

    Raises:
        ContextBusy: As `acquire_lease`; or an earlier run has got its answer.
    """
    attempt.recorder.stamp.ids["context_id"] = record.context_id
    if attempt.spec.cancel is not None:
        # A cancel adds nothing to the conversation, and need not wait for the run that goes on there.
        await attempt.life.prepare(try_acquire_lease(attempt, event_log), GRACE)
        return await _read(attempt, event_log, seen)
    if seen is not None and is_over(seen.events[-1]):
        return await _read(attempt, event_log, seen)
    while True:
        acquired = await acquire_lease(attempt, event_log)
        # Somebody may have gone on with this run meanwhile.
        found = await _read(attempt, event_log, seen)
        if found is None or not acquired:
            return None if found is None or found.snapshot.state.state == "working" else found
        snapshot = found.snapshot
        if not snapshot.waiting or attempt.life.ending or is_over(snapshot.events[-1]):
            return found
        if has_begun(snapshot.record.state, snapshot.record.seq) or _is_cancelled(snapshot):
            # It has dropped their questions already; or it comes to its end, and does not begin.
            return found
        if await drop_earlier_questions(attempt, event_log, snapshot.waiting, close):
            return await _read(attempt, event_log, snapshot)


async def _read(attempt: Attempt, event_log: EventLog, seen: Snapshot | None) -> _Found | None:
    """Read the run and the conversation before it, or what came since the earlier snapshot.

    Raises:
        EventLogError: One of the last events cannot be read.
    """
    prepare, task_id, context_id = attempt.life.prepare, attempt.task_id, attempt.context_id
    if attempt.inbox is not None:
        attempt.inbox.mark_seen()
    cached = find_cached(event_log, context_id)
    history = HistoryQuery(cached[0], FORMAT)
    snapshot = await prepare(read_log(event_log.snapshot, task_id, since=seen, history=history), GRACE)
    if snapshot is None or snapshot.history is None:
        return None
    events = snapshot.events
    if not events or snapshot.record.seq > events[-1].seq:
        check_whole(task_id, events, max(1, snapshot.record.seq))
    before = await prepare(add_page(event_log, context_id, task_id, cached, snapshot.history), GRACE)
    return None if before is None else _Found(snapshot, before)


def _is_cancelled(snapshot: Snapshot) -> bool:
    """Whether a command to cancel a run waits in its mail."""
    return apply_commands(snapshot.task_id, snapshot.state, snapshot.new_commands, warn=False).cancel is not None


def _go_on_as_begun(attempt: Attempt, events: Sequence[Event]) -> None:
    """Take from the `task` event what the run was begun with; a run that is given up, or over, needs none of it."""
    task, as_begun = events[0] if events else None, attempt.spec.as_begun
    if as_begun is None or not isinstance(task, TaskEvent) or task.options is None:
        return
    state = fold_all(events)
    if state.retryable or not state.finished:
        attempt.use_spec(as_begun(task.options))
        attempt.life.limit(attempt.info.limits.seconds)


def _take_up(attempt: Attempt, event_log: EventLog, found: _Found) -> Event | None:
    """Go on with a run as its next attempt; give its final event if it has ended for good."""
    spec, events = attempt.spec, found.snapshot.events
    earlier = EarlierAttempts(events, found.before)
    state = earlier.state
    if spec.cancel is None and (state.retryable or not state.finished):
        check_whole(attempt.task_id, events, state.seq)
    if state.state == "submitted":
        # Nobody has begun it yet: this is its first attempt, and the `task` belongs to it.
        attempt.earlier_events = events
        _go_on(attempt, earlier, events, state.attempt)
    else:
        _go_on(attempt, earlier, events, state.attempt + 1)
    inputs = spec.inputs or {}
    leaves_at_rest = spec.settles or spec.cancel is not None
    if attempt.life.ending and is_superseded(state):
        # It ends anyway, and its answers come too late.
        inputs = {}
    elif not leaves_at_rest:
        check_not_superseded(attempt.task_id, state)
    answers = new_answers(attempt.task_id, state, inputs)
    attempt.credentials.update(find_credentials(state, inputs))
    # Nobody needs them there any more, and a credential is to be in as few places as possible.
    attempt.use_spec(spec._replace(inputs=None, as_begun=None, known=None))
    attempt.first_news = [
        earlier.address_answer(InputReceivedEvent(input_id=input_id, value=value))
        for input_id, value in answers.items()
    ]
    if (state.finished and not state.retryable) or (leaves_at_rest and (state.finished or state.state == "canceled")):
        # Who settles a run, or ends it, leaves it at rest, which somebody may have brought it to just now.
        return events[-1]
    commands = () if is_over(events[-1]) else found.snapshot.new_commands
    if attempt.inbox is not None:
        attempt.inbox.skip_applied(commands[-1][0] if commands else state.last_command)
    taken = _take_mail(attempt, state.replace(answers={**state.answers, **answers}), commands)
    if not attempt.life.ending:
        check_can_continue(found.snapshot, taken, asks=spec.on_input is not None, has_inputs=bool(inputs))
    if spec.cancel is None:
        _compare_strategy(attempt, events[0])
        limit = check_attempts(state, attempt.info.limits)
        if limit is not None and state.state != "submitted":
            attempt.life.finish(limit)
    _write_after(attempt, event_log, state.seq)
    return None


def _take_mail(attempt: Attempt, state: RunState, letters: Commands) -> AppliedCommands:
    """Take the letters that the run has not taken yet, unless it ends anyway."""
    taken = apply_commands(
        attempt.task_id, state, [(number, letter) for number, letter in letters if number > state.last_command]
    )
    if taken.cancel is not None and attempt.spec.cancel is not None:
        # It is there for a cancel, and this is the one.
        attempt.life.revise(Canceled(*taken.cancel))
    elif taken.cancel is not None:
        attempt.life.finish(Canceled(*taken.cancel))
    if not attempt.life.ending:
        addressed = attempt.recorder.earlier.address_answer
        news = [addressed(event) if isinstance(event, InputReceivedEvent) else event for event in taken.events]
        attempt.first_news = (*attempt.first_news, *news)
        attempt.credentials.update(taken.credentials)
        attempt.skipped_commands = taken.skipped
    return taken


def _say(attempt: Attempt, number: int, letter: MessageCommand) -> None:
    messages = find_new_messages(attempt.state(), letter)
    try:
        if messages:
            say(attempt, messages, interrupt=letter.interrupt, metadata={COMMAND_ID: number})
    except RunOver as error:
        log.debug("letter %s is for the next attempt, if there is one: %s", number, error)
    except ConfigurationError as error:
        log.warning("letter %s to the run %s comes to nothing: %s", number, attempt.task_id, error)


async def _copy_run(attempt: Attempt, event_log: EventLog, fork: Fork) -> None:
    """Go on as the next attempt of a copy of another run, which the log gets with the first events of the attempt."""
    events = await read_log(event_log.read, fork.task_id)
    check_whole(fork.task_id, events, 1)
    before = await conversation(event_log, events[0].context_id, before=fork.task_id)
    attempt.earlier_events, answers = fork.copy(
        events,
        before.messages,
        task_id=attempt.task_id,
        context_id=attempt.context_id,
        agent_name=attempt.info.agent_name,
        model=attempt.info.model.name,
        options=attempt.spec.begun_with,
        metadata={**events[0].metadata, **attempt.spec.metadata},
        asked=attempt.asked,
    )
    if not await acquire_lease(attempt, event_log):
        return
    for event in attempt.earlier_events:
        normalise(event)
    earlier = EarlierAttempts(attempt.earlier_events)
    _go_on(attempt, earlier, attempt.earlier_events, earlier.state.attempt + 1)
    attempt.first_news = _changes(attempt, fork, answers)
    _write_after(attempt, event_log, 0)


def _changes(attempt: Attempt, fork: Fork, answers: Sequence[ToolCompleteEvent]) -> Iterator[Event]:
    """What is different in a fork, each event once the one before it is folded."""
    for answer in answers:
        # A strategy that runs again finds it here.
        attempt.recorder.earlier.results[answer.step or "", answer.index] = answer
        yield answer
    if fork.added:
        yield from attempt.left_open()
        yield from fork.added


def _go_on(attempt: Attempt, earlier: EarlierAttempts, events: Sequence[Event], number: int) -> None:
    attempt.recorder.resume(earlier, ThoughtGraph.of(events), number)
    attempt.info.metadata = {**events[0].metadata, **attempt.spec.metadata}


def _write_after(attempt: Attempt, event_log: EventLog, durable_seq: int) -> None:
    if attempt.lease is not None and attempt.lease.lost is not None:
        # Its end would be one that the run does not have: others may have begun it, or will.
        return
    # The writer must not refer to the attempt: the cycle would leave each attempt to the garbage collector.
    failed = partial(_end_unwritten, attempt.life, attempt.recorder.delivery)
    attempt.recorder.writer = LogWriter(event_log, attempt.task_id, durable_seq, failed, attempt.info.scope.gate)


def _end_unwritten(life: Life, delivery: DeliveryGate, error: Exception) -> None:
    """End an attempt whose events the log does not accept."""
    if isinstance(error, ConflictError):
        # Another process owns the run, so subscribers must not get more events of this attempt.
        delivery.drop()
    life.finish(error)


def _compare_strategy(attempt: Attempt, task: Event) -> None:
    """Tell whoever resumes a run by another strategy than it was begun with, which `run(strategy=)` makes easy."""
    begun = task.strategy if isinstance(task, TaskEvent) else None
    if begun != attempt.spec.strategy:
        log.warning(
            "the run %s was begun with %s and goes on with %s: agent.resume(..., strategy=) takes the first",
            attempt.task_id,
            begun or "no strategy",
            attempt.spec.strategy or "none",
        )
