"""Commands for runs in any process: cancel them, answer their questions, send them messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from rxloop.coordination import answers
from rxloop.coordination.inbox import apply_commands, find_new_messages
from rxloop.coordination.order import wait_for_end
from rxloop.errors import ConflictError, InvalidInput, RunOver
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import RETRY_SECONDS, process_events, read_log
from rxloop.pipeline.records import Snapshot
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, GoalsCommand, MessageCommand
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import GoalsUpdatedEvent, InputReceivedEvent
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Message
from rxloop.protocol.tool_events import GoalChange
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState
from rxloop.storage.conversation import conversation

_APPLY_TIMEOUT = 2.0
"""Seconds to wait for a working run to apply a message. The message has already been stored."""


async def send_cancel(event_log: EventLog, task_id: str, reason: str, close: Callable[[], Awaitable[bool]]) -> None:
    """Cancel a run, and wait until its end has been logged.

    Args:
        event_log: Log with the run.
        task_id: Id of the run.
        reason: Reason recorded in the final event.
        close: Async function that closes the run by writing its final event. Returns False if another process owns
            the run.

    Raises:
        UnknownRun: The run isn't in the log.
        ConflictError: The owning process hasn't ended the run in time.
    """
    state = await _read_state(event_log, task_id)
    if state.finished or state.state == "canceled":
        return
    number = await read_log(event_log.send_command, task_id, CancelCommand(reason=reason))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_SECONDS
    while not (state.finished or state.state == "canceled" or state.last_command >= number):
        if loop.time() > deadline:
            raise ConflictError(
                f"run {task_id} is owned by another process, which has not ended it within {RETRY_SECONDS:g} s; "
                "the cancel command stays in its inbox"
            )
        if not await _has_owner(event_log, task_id, state) and await close():
            return
        await wait_for_end(event_log, task_id, state.seq)
        state = await _read_state(event_log, task_id)


async def _has_owner(event_log: EventLog, task_id: str, state: RunState) -> bool:
    """Return True if a living process is executing the run, according to the log."""
    if state.state != "working":
        return False
    # The log may be unable to read the last event. The attempt closing the run will report that.
    if (await read_log(event_log.get_record, task_id)).state != "working":
        return False
    return not await read_log(event_log.is_orphaned, task_id)


async def send_answer(
    event_log: EventLog,
    task_id: str,
    inputs: Mapping[str, Any],
    *,
    messages: Sequence[Message] = (),
    executes_here: bool = False,
) -> dict[str, Any]:
    """Send answers to a run, returning once they have been stored.

    The questions must already be in the log; see `run.ownership.wait_stored`.

    Args:
        event_log: Log with the run.
        task_id: Id of the run.
        inputs: Answers keyed by question id.
        messages: User messages to send along. They are only added to the history if the answers are accepted.
        executes_here: Whether the caller will resume the run itself, and may therefore receive unencrypted credentials.

    Returns:
        Unencrypted credentials, which can't be sent as commands.

    Raises:
        InvalidInput: The run isn't waiting for an answer, was already answered differently, or an answer doesn't fit
            its question.
    """
    snapshot = await answers.read_snapshot(event_log, task_id)
    await answers.validate_answers(snapshot.state, inputs)
    new, state = _find_new_answers(snapshot, inputs), snapshot.state
    plain = answers.find_plain_credentials(state, inputs)
    if plain and not executes_here:
        raise InvalidInput(
            f"the answer to {', '.join(plain)} is a credential, which must not be logged: resume the run using "
            f"agent.resume({task_id!r}, inputs=...), or pass public_key= when asking, to receive ciphertext"
        )
    encrypted = {key: value for key, value in answers.find_credentials(state, inputs).items() if key not in plain}
    if new or encrypted:
        command = AnswerCommand(inputs=new | encrypted, messages=list(messages))
        number = await read_log(event_log.send_command, task_id, command)
        # When several senders find the question open, the first command wins: either an answer, or the drop by a later
        # run.
        snapshot = await answers.read_snapshot(event_log, task_id, since=snapshot)
        _find_new_answers(snapshot, new, before=number, encrypted=encrypted)
    elif plain and messages:
        await send_message(event_log, task_id, messages, interrupt=False)
    return plain


def _find_new_answers(
    snapshot: Snapshot, inputs: Mapping[str, Any], *, before: float = inf, encrypted: Collection[str] = ()
) -> dict[str, Any]:
    """Return only new answers.

    Args:
        snapshot: Current snapshot of the run.
        inputs: Answers keyed by question id.
        before: Number of the first command to ignore. Defaults to none.
        encrypted: Ids of questions answered using encrypted credentials.

    Raises:
        InvalidInput: See `send_answer`.
    """
    task_id, state = snapshot.task_id, snapshot.state
    if not inputs.keys() <= state.answers.keys():
        answers.check_not_superseded(task_id, state)
    is_open = not (inputs.keys() <= state.answers.keys() and state.pending.keys().isdisjoint(encrypted))
    if is_open:
        answers.check_not_dropped(task_id, state, snapshot.later)
    earlier = [command for command in _find_accepted_commands(snapshot) if command[0] < before]
    applied = apply_commands(task_id, state, earlier, warn=False)
    values = {event.input_id: event.value for event in applied.events if isinstance(event, InputReceivedEvent)}
    if is_open and applied.dropped_by is not None:
        raise answers.make_dropped_error(task_id, state, applied.dropped_by, snapshot.record.context_id)
    return answers.find_new_answers(task_id, state.replace(answers={**state.answers, **values}), inputs)


def _find_accepted_commands(snapshot: Snapshot) -> list[tuple[int, Command]]:
    """Return the pending commands whose senders have been told that they were accepted.

    A pending cancel discards them later, but a new command must not contradict them.
    """
    return [command for command in snapshot.new_commands if not isinstance(command[1], CancelCommand)]


async def send_message(event_log: EventLog, task_id: str, messages: Sequence[Message], *, interrupt: bool) -> None:
    """Send messages to a run, returning once they have been stored.

    Args:
        event_log: Log with the run.
        task_id: Id of the run.
        messages: User or system messages.
        interrupt: Whether to interrupt the model while it is answering.

    Raises:
        RunOver: The run has ended, or a later run has dropped its questions.
        ConfigurationError: The log doesn't support commands.
    """
    snapshot = await answers.read_snapshot(event_log, task_id)
    _check_accepts_messages(snapshot)
    # With an id, a message can be recognised when its sender retries after losing the response.
    identified = [
        message if message.message_id is not None else message.model_copy(update={"message_id": f"said:{make_id()}"})
        for message in messages
    ]
    command = MessageCommand(messages=identified, interrupt=interrupt)
    _, state = await _send(event_log, task_id, command)
    if state.finished and find_new_messages(state, command):
        raise RunOver(f"run {task_id} ended before receiving the message: start a new run in the same conversation")


async def send_goals(event_log: EventLog, task_id: str, changes: Sequence[GoalChange]) -> None:
    """Change the goals of a run, returning once the changes have been stored.

    Args:
        event_log: Log with the run.
        task_id: Id of the run.
        changes: New goals and changes.

    Raises:
        RunOver: As in `send_message`.
        ConfigurationError: A change is invalid, or the log doesn't support commands.
    """
    # Imported here because few programs change the goals of other runs.
    from rxloop.tools.goals import change_goals

    snapshot = await answers.read_snapshot(event_log, task_id)
    _check_accepts_messages(snapshot)
    state = snapshot.state
    goals = state.goals
    if goals is None:
        goals = (await conversation(event_log, snapshot.record.conversation, before=task_id)).goals or ()
    pending = apply_commands(task_id, state.replace(goals=goals), _find_accepted_commands(snapshot), warn=False)
    updates = [event.goals for event in pending.events if isinstance(event, GoalsUpdatedEvent)]
    change_goals([goals, *updates][-1], changes)
    number, state = await _send(event_log, task_id, GoalsCommand(changes=[*changes]))
    if state.finished and state.last_command < number:
        raise RunOver(f"run {task_id} ended before its goals were changed: start a new run in the same conversation")


async def _send(event_log: EventLog, task_id: str, command: MessageCommand | GoalsCommand) -> tuple[int, RunState]:
    """Store a command, and give the owner time to apply it. Return its number and the state of the run."""
    number = await read_log(event_log.send_command, task_id, command)
    state = await _read_state(event_log, task_id)
    if state.last_command < number and await _has_owner(event_log, task_id, state):
        # The owner applies commands immediately unless it is already ending the run.
        await _wait_applied(event_log, task_id, state.seq, number)
        state = await _read_state(event_log, task_id)
    return number, state


def _check_accepts_messages(snapshot: Snapshot) -> None:
    task_id, state, later = snapshot.task_id, snapshot.state, snapshot.later
    if state.finished:
        raise RunOver(
            f"cannot send to run {task_id} because it is {state.state}: start a new run in the same conversation"
        )
    if answers.is_superseded(state) and state.error is not None:
        raise RunOver(
            f"run {task_id} was superseded because {state.error.message}: start a new run in the same conversation"
        )
    if state.state == "canceled":
        raise RunOver(
            f"run {task_id} has been canceled: start a new run in the same conversation, or resume it and send "
            "the message then"
        )
    if state.pending and later is not None:
        reason = answers.describe_drop(later.task_id, later.context_id)
        raise RunOver(f"run {task_id} was superseded because {reason}: start a new run in the same conversation")


async def _wait_applied(event_log: EventLog, task_id: str, after_seq: int, number: int) -> None:
    """Wait for a command to be applied, up to a time limit because it may be deferred."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_APPLY_TIMEOUT):
            async for event in event_log.follow(task_id, after_seq=after_seq):
                if event.metadata.get(COMMAND_ID, 0) >= number:
                    return


async def _read_state(event_log: EventLog, task_id: str) -> RunState:
    return await process_events(event_log, task_id, fold_all)
