"""What an attempt begins with: its turn in the conversation, and what the log has of the run and what came before."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rxloop.coordination.answers import (
    check_not_superseded,
    describe_drop,
    find_credentials,
    has_begun,
    is_superseded,
    new_answers,
)
from rxloop.coordination.commands import AppliedCommands, Commands, apply_commands, find_new_messages
from rxloop.coordination.order import check_can_continue, drop_questions, list_waiting, wait_for_end
from rxloop.errors import ConfigurationError, ConflictError, ContextBusy, RunOver, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import check_whole, read_log
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.events import (
    SUPERSEDED,
    Event,
    InputReceivedEvent,
    TaskEvent,
    ToolCompleteEvent,
    normalise,
)
from rxloop.run.attempt import Attempt
from rxloop.run.ends import is_over, run_exists
from rxloop.run.life import Canceled
from rxloop.run.log_writer import LogWriter
from rxloop.run.post import Post
from rxloop.run.steering import say
from rxloop.run.taking import take_turn, try_turn
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.fold import fold_all
from rxloop.state.run_state import MAIL_ID, RunState, check_attempts
from rxloop.storage.conversation import conversation
from rxloop.support.tasks import GRACE
from rxloop.thinking.graph.thought_graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.pipeline.records import RunRecord
    from rxloop.run.fork import Fork

log = logging.getLogger("rxloop")

_BEYOND = 2**31 - 1
"""A `seq` that no run comes to."""
_Close = Callable[[Attempt], Awaitable[None]]


async def load(attempt: Attempt, event_log: EventLog, close: _Close) -> Event | None:
    """Fold what the log has; give the final event of a run that is over already.

    Without such an event, and without a writer, the attempt had to end before it was loaded.

    Args:
        attempt: What is loaded.
        event_log: The log.
        close: Executes the attempt that ends a run whose questions this one drops.
    """
    spec = attempt.spec
    attempt.questions.has_inbox = True
    attempt.post = Post(attempt.life, attempt.recorder, event_log, partial(_say, attempt), attempt.questions.open)
    if spec.resume:
        return await _load_run(attempt, event_log, close)
    if spec.chosen_id:
        await attempt.life.prepare(_see_that_it_is_new(attempt, event_log))
    if spec.fork is not None:
        await attempt.life.prepare(_copy_run(attempt, event_log, spec.fork))
        return None
    taking = (
        _take_turn_to_begin(attempt, event_log, None, close) if spec.keep_context else take_turn(attempt, event_log)
    )
    if not await taking:
        return None
    if spec.keep_context:
        before = await attempt.life.prepare(conversation(event_log, attempt.context_id, before=spec.task_id))
        if before is not None:
            attempt.recorder.states[None] = before
    _write_after(attempt, event_log, 0)
    return None


async def _take_turn_to_begin(attempt: Attempt, event_log: EventLog, own: RunState | None, close: _Close) -> bool:
    """Take the turn for a run that nobody has begun, and that lets go what earlier ones of its conversation ask.

    Args:
        attempt: Its attempt.
        event_log: The log.
        own: Where it stands; None if the log gets it only when it begins.
        close: Executes the attempt that ends a run whose questions this one drops.

    Returns:
        As `take_turn`.

    Raises:
        ContextBusy: As `take_turn`; or one of them has got its answer, which would be void.
    """
    spec = attempt.spec
    while await take_turn(attempt, event_log):
        if attempt.life.ending:
            return True
        # With time to come to its end: a run is not to be left half closed.
        answered = await attempt.life.prepare(_drop_questions(attempt, event_log, own, close), GRACE)
        if answered is None:
            return True
        if spec.when_busy == "refuse" or spec.settles:
            raise ContextBusy(
                f"the run {answered.task_id}, which is earlier in the conversation {attempt.context_id}, has got its "
                "answer, and nobody has gone on with it yet: settle or resume that one first, cancel it, or queue this "
                'one with when_busy="wait"'
            )
        if attempt.turn is not None:
            await attempt.turn.give_back()
            attempt.turn = None
        await attempt.life.prepare(wait_for_end(event_log, answered.task_id, answered.seq))
    return False


async def _drop_questions(
    attempt: Attempt, event_log: EventLog, own: RunState | None, close: _Close
) -> RunRecord | None:
    """End the earlier runs of the conversation that wait for answers, so that their readers learn that none counts.

    Returns:
        The run that has got its answer, so that the attempt cannot begin yet.
    """
    waiting = await list_waiting(event_log, attempt.context_id, None if own is None else attempt.task_id)
    if not waiting:
        return None
    if own is not None and await _is_cancelled(event_log, attempt.task_id, own):
        # It comes to its end, and does not begin.
        return None
    answered = await drop_questions(event_log, waiting[0], attempt.task_id)
    if answered is not None:
        return answered
    said = describe_drop(attempt.task_id, attempt.context_id)
    for record in reversed(waiting):
        spec = attempt.spec._replace(
            task_id=record.task_id,
            context_id=record.context_id,
            resume=True,
            cancel=said,
            cancel_code=SUPERSEDED,
            # What the new run brings is none of this one's.
            settles=False,
            messages=(),
            inputs=None,
            fork=None,
            metadata={},
            as_begun=None,
            steering=None,
            chosen_id=False,
        )
        try:
            await close(Attempt(spec))
        except ConflictError as error:
            log.debug("the run %s was ended elsewhere: %s", record.task_id, error)
    return None


async def _is_cancelled(event_log: EventLog, task_id: str, state: RunState) -> bool:
    """Whether a command to cancel a run waits in its mail."""
    letters = await read_log(event_log.read_commands, task_id, after=state.mail)
    return apply_commands(task_id, state, letters, warn=False).cancel is not None


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


async def _load_run(attempt: Attempt, event_log: EventLog, close: _Close) -> Event | None:
    prepare, task_id, gives_up = attempt.life.prepare, attempt.task_id, attempt.spec.cancel is not None
    # An attempt that is cancelled before it began is loaded all the same: its end belongs into the log.
    events = await prepare(read_log(event_log.read, task_id), GRACE)
    if events is None:
        return None
    if not events:
        check_whole(task_id, events, 1)
    attempt.recorder.context_id = events[0].context_id
    _go_on_as_begun(attempt, events)
    if gives_up:
        # A cancel adds nothing to the conversation, and need not wait for the run that goes on there.
        await prepare(try_turn(attempt, event_log), GRACE)
    elif not is_over(events[-1]):
        own = fold_all(events)
        begun = has_begun(own.state, events[-1].seq)
        taken = await (take_turn(attempt, event_log) if begun else _take_turn_to_begin(attempt, event_log, own, close))
        # Somebody may have gone on with this run meanwhile.
        newer = await prepare(read_log(event_log.read, task_id, after_seq=events[-1].seq), GRACE)
        if newer is None:
            return None
        events = [*events, *newer]
        if not taken and fold_all(events).state == "working":
            return None
    await prepare(_see_that_it_is_whole(attempt, event_log, events), GRACE)
    before = await prepare(conversation(event_log, attempt.context_id, before=task_id), GRACE)
    post, letters = attempt.post, ()
    if post is not None and not is_over(events[-1]):
        letters = await prepare(post.letters(0), GRACE)
    if before is None or letters is None:
        return None
    return await _take_up(attempt, event_log, events, before, letters)


def _go_on_as_begun(attempt: Attempt, events: Sequence[Event]) -> None:
    """Take from the `task` event what the run was begun with; a run that is given up, or over, needs none of it."""
    task, as_begun = events[0], attempt.spec.as_begun
    if as_begun is None or not isinstance(task, TaskEvent) or task.options is None:
        return
    state = fold_all(events)
    if state.retryable or not state.finished:
        attempt.use_spec(as_begun(task.options))
        attempt.life.limit(attempt.limits.seconds)


async def _see_that_it_is_whole(attempt: Attempt, event_log: EventLog, events: Sequence[Event]) -> None:
    """See that the last events are there.

    Raises:
        EventLogError: One of them cannot be read.
    """
    record = await read_log(event_log.get_record, attempt.task_id)
    if record.seq > events[-1].seq:
        # Read once more: somebody may have written it just now, and who that was is told by a conflict.
        check_whole(attempt.task_id, await read_log(event_log.read, attempt.task_id), record.seq)


async def _take_up(
    attempt: Attempt, event_log: EventLog, events: Sequence[Event], before: RunState, letters: Commands
) -> Event | None:
    """Go on with a run as its next attempt; give its final event if it has ended for good."""
    spec = attempt.spec
    earlier = EarlierAttempts(events, before)
    state = earlier.state
    if spec.cancel is None and (state.retryable or not state.finished):
        check_whole(attempt.task_id, events, state.seq)
    if state.state == "submitted":
        # Nobody has begun it yet: this is its first attempt, and the `task` belongs to it.
        attempt.past = events
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
    attempt.use_spec(spec._replace(inputs=None, as_begun=None))
    attempt.news = [
        earlier.addressed(InputReceivedEvent(input_id=input_id, value=value)) for input_id, value in answers.items()
    ]
    if (state.finished and not state.retryable) or (leaves_at_rest and (state.finished or state.state == "canceled")):
        # Who settles a run, or ends it, leaves it at rest, which somebody may have brought it to just now.
        return events[-1]
    taken = _take_mail(attempt, state.changed(answers={**state.answers, **answers}), letters)
    if not attempt.life.ending:
        asks, answered = spec.on_input is not None, bool(inputs)
        checking = check_can_continue(
            event_log, attempt.context_id, attempt.task_id, state, taken, asks=asks, answered=answered
        )
        await attempt.life.prepare(checking, GRACE)
    if spec.cancel is None:
        _compare_strategy(attempt, events[0])
        limit = check_attempts(state, attempt.limits)
        if limit is not None and state.state != "submitted":
            attempt.life.finish(limit)
    _write_after(attempt, event_log, state.seq)
    return None


def _take_mail(attempt: Attempt, state: RunState, letters: Commands) -> AppliedCommands:
    """Take the letters that the run has not taken yet, unless it ends anyway."""
    taken = apply_commands(
        attempt.task_id, state, [(number, letter) for number, letter in letters if number > state.mail]
    )
    if taken.cancel is not None and attempt.spec.cancel is not None:
        # It is there for a cancel, and this is the one.
        attempt.life.revise(Canceled(*taken.cancel))
    elif taken.cancel is not None:
        attempt.life.finish(Canceled(*taken.cancel))
    if not attempt.life.ending:
        addressed = attempt.recorder.earlier.addressed
        news = [addressed(event) if isinstance(event, InputReceivedEvent) else event for event in taken.news]
        attempt.news = (*attempt.news, *news)
        attempt.credentials.update(taken.credentials)
        attempt.passed = taken.skipped
    return taken


def _say(attempt: Attempt, number: int, letter: MessageCommand) -> None:
    messages = find_new_messages(attempt.state(), letter)
    try:
        if messages:
            say(attempt, messages, interrupt=letter.interrupt, metadata={MAIL_ID: number})
    except RunOver as error:
        log.debug("letter %s is for the next attempt, if there is one: %s", number, error)
    except ConfigurationError as error:
        log.warning("letter %s to the run %s comes to nothing: %s", number, attempt.task_id, error)


async def _copy_run(attempt: Attempt, event_log: EventLog, fork: Fork) -> None:
    """Go on as the next attempt of a copy of another run, which the log gets with the first events of the attempt."""
    events = await read_log(event_log.read, fork.task_id)
    check_whole(fork.task_id, events, 1)
    before = await conversation(event_log, events[0].context_id, before=fork.task_id)
    attempt.past, answers = fork.copy(
        events,
        before.messages,
        task_id=attempt.task_id,
        context_id=attempt.context_id,
        agent_name=attempt.agent_name,
        model=attempt.model.name,
        options=attempt.spec.begun_with,
        metadata={**events[0].metadata, **attempt.spec.metadata},
        asked=attempt.asked,
    )
    if not await take_turn(attempt, event_log):
        return
    for event in attempt.past:
        normalise(event)
    earlier = EarlierAttempts(attempt.past)
    _go_on(attempt, earlier, attempt.past, earlier.state.attempt + 1)
    attempt.news = _changes(attempt, fork, answers)
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
    attempt.recorder.go_on(earlier, ThoughtGraph.of(events), number)
    attempt.metadata = {**events[0].metadata, **attempt.spec.metadata}


def _write_after(attempt: Attempt, event_log: EventLog, durable_seq: int) -> None:
    if attempt.turn is not None and attempt.turn.lost is not None:
        # Its end would be one that the run does not have: others may have begun it, or will.
        return

    def failed(error: Exception) -> None:
        if isinstance(error, ConflictError):
            # What comes from here on is none of the run's any more.
            attempt.recorder.mute()
        attempt.life.finish(error)

    attempt.recorder.writer = LogWriter(event_log, attempt.task_id, durable_seq, failed, attempt.scope.gate)


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
