"""Commands to a run that may work in another process: cancel it, answer its questions, send it messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from rxloop.coordination.answers import (
    check_not_dropped,
    check_not_superseded,
    describe_drop,
    find_credentials,
    find_plain_credentials,
    is_superseded,
    make_dropped_error,
    new_answers,
)
from rxloop.coordination.inbox import apply_commands, find_new_messages
from rxloop.coordination.order import wait_for_end
from rxloop.errors import ConflictError, InvalidInput, RunOver
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import PATIENCE, read_log
from rxloop.pipeline.records import Snapshot
from rxloop.protocol.commands import AnswerCommand, CancelCommand, MessageCommand
from rxloop.protocol.events import InputReceivedEvent
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Message
from rxloop.state.fold import fold_all
from rxloop.state.run_state import COMMAND_ID, RunState

_APPLIED_IN = 2.0
"""Seconds to wait until a working run has applied a message. The message is durable in any case."""


async def send_cancel(event_log: EventLog, task_id: str, reason: str, close: Callable[[], Awaitable[bool]]) -> None:
    """Cancel a run, and wait until the log contains its end.

    Args:
        event_log: The log.
        task_id: The run.
        reason: Reason for the final event.
        close: Ends the run by an attempt that only writes its end. Returns False if another process owns the run.

    Raises:
        UnknownRun: The log does not have the run.
        ConflictError: Another process owns the run and has not ended it in time.
    """
    state = await _read_state(event_log, task_id)
    if state.finished or state.state == "canceled":
        return
    number = await read_log(event_log.send_command, task_id, CancelCommand(reason=reason))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not (state.finished or state.state == "canceled" or state.last_command >= number):
        if loop.time() > deadline:
            raise ConflictError(
                f"the run {task_id} goes on in another process, which has not ended it for {PATIENCE:g} s; it gets to "
                "know of it by its mail"
            )
        if not await _has_owner(event_log, task_id, state) and await close():
            return
        await wait_for_end(event_log, task_id, state.seq)
        state = await _read_state(event_log, task_id)


async def _has_owner(event_log: EventLog, task_id: str, state: RunState) -> bool:
    """Return True if the log shows that a living process executes the run."""
    if state.state != "working":
        return False
    # The log may be unable to read the last event. The attempt that closes the run then reports it.
    if (await read_log(event_log.get_record, task_id)).state != "working":
        return False
    orphaned = await read_log(event_log.list_orphaned, submitted_limit=0)
    return all(record.task_id != task_id for record in orphaned)


async def send_answer(
    event_log: EventLog,
    task_id: str,
    inputs: Mapping[str, Any],
    *,
    messages: Sequence[Message] = (),
    executes_here: bool = False,
) -> dict[str, Any]:
    """Answer questions of a run. The answers are durable when this returns.

    The log must have the questions already; see `run.ownership.wait_stored`.

    Args:
        event_log: The log.
        task_id: The run.
        inputs: Answers by the id of the question.
        messages: Messages of the person next to the answers. They enter the history if the answers are accepted.
        executes_here: The caller resumes the run itself, so it may receive credentials that are not encrypted.

    Returns:
        The credentials that are not encrypted, which no command may contain.

    Raises:
        InvalidInput: The run does not wait for an answer, has another one, or the answer does not fit the question.
    """
    snapshot = await read_log(event_log.snapshot, task_id)
    new, state = _find_new_answers(snapshot, inputs), snapshot.state
    plain = find_plain_credentials(state, inputs)
    if plain and not executes_here:
        raise InvalidInput(
            f"the answer to {', '.join(plain)} is a credential, which no log is to keep: resume the run with it, by "
            f"agent.resume({task_id!r}, inputs=...), or have the tool ask with public_key=, for ciphertext"
        )
    encrypted = {key: value for key, value in find_credentials(state, inputs).items() if key not in plain}
    if new or encrypted:
        command = AnswerCommand(inputs=new | encrypted, messages=list(messages))
        number = await read_log(event_log.send_command, task_id, command)
        # Several senders may have found the question open. The first command counts: an answer, or the drop of the
        # question by a later run.
        snapshot = await read_log(event_log.snapshot, task_id, since=snapshot)
        _find_new_answers(snapshot, new, before=number, encrypted=encrypted)
    elif plain and messages:
        await send_message(event_log, task_id, messages, interrupt=False)
    return plain


def _find_new_answers(
    snapshot: Snapshot, inputs: Mapping[str, Any], *, before: float = inf, encrypted: Collection[str] = ()
) -> dict[str, Any]:
    """Return the answers that the run does not have yet.

    Args:
        snapshot: The run.
        inputs: The answers.
        before: Number of the first command to ignore.
        encrypted: Questions that the command answers by encrypted credentials.

    Raises:
        InvalidInput: As for `send_answer`.
    """
    task_id, state = snapshot.task_id, snapshot.state
    if not inputs.keys() <= state.answers.keys():
        check_not_superseded(task_id, state)
    is_open = not (inputs.keys() <= state.answers.keys() and state.pending.keys().isdisjoint(encrypted))
    if is_open:
        check_not_dropped(task_id, state, snapshot.later)
    earlier = [command for command in snapshot.new_commands if command[0] < before]
    applied = apply_commands(task_id, state, earlier, warn=False)
    known = {event.input_id: event.value for event in applied.news if isinstance(event, InputReceivedEvent)}
    if is_open and applied.dropped_by is not None:
        raise make_dropped_error(task_id, state, applied.dropped_by, snapshot.record.context_id)
    return new_answers(task_id, state.replace(answers={**state.answers, **known}), inputs)


async def send_message(event_log: EventLog, task_id: str, messages: Sequence[Message], *, interrupt: bool) -> None:
    """Send messages to a run. They are durable when this returns.

    Args:
        event_log: The log.
        task_id: The run.
        messages: Messages of the user or the system.
        interrupt: Interrupt the answer that the model is writing.

    Raises:
        RunOver: The run is over, was cancelled, or waits for an answer that a later run has dropped.
        ConfigurationError: The log has no inbox.
    """
    snapshot = await read_log(event_log.snapshot, task_id)
    _check_accepts_messages(snapshot)
    # The id lets the run recognise a message that its sender repeats because it did not see the first one arrive.
    identified = [
        message if message.message_id is not None else message.model_copy(update={"message_id": f"said:{make_id()}"})
        for message in messages
    ]
    command = MessageCommand(messages=identified, interrupt=interrupt)
    number = await read_log(event_log.send_command, task_id, command)
    state = await _read_state(event_log, task_id)
    if state.last_command < number and await _has_owner(event_log, task_id, state):
        # The owner applies the message at once, unless it is about to write the end of the run.
        await _wait_applied(event_log, task_id, state.seq, number)
        state = await _read_state(event_log, task_id)
    if state.finished and find_new_messages(state, command):
        raise RunOver(
            f"the run {task_id} came to its end meanwhile, and was not told: begin a new run in its conversation"
        )


def _check_accepts_messages(snapshot: Snapshot) -> None:
    task_id, state, later = snapshot.task_id, snapshot.state, snapshot.later
    if state.finished:
        raise RunOver(
            f"the run {task_id} is {state.state}, and nothing can be said to it: begin a new run in its conversation"
        )
    if is_superseded(state) and state.error is not None:
        raise RunOver(
            f"nobody goes on with the run {task_id}, since {state.error.message}: begin a new run in its conversation"
        )
    if state.state == "canceled":
        raise RunOver(
            f"the run {task_id} is canceled, and nobody goes on with it: begin a new run in its conversation, or "
            "resume it and say it there"
        )
    if state.pending and later is not None:
        reason = describe_drop(later.task_id, later.context_id)
        raise RunOver(f"nobody goes on with the run {task_id}, since {reason}: begin a new run in its conversation")


async def _wait_applied(event_log: EventLog, task_id: str, after_seq: int, number: int) -> None:
    """Wait until a run has applied a command or is idle, for a limited time: the command may wait for an answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_APPLIED_IN):
            async for event in event_log.follow(task_id, after_seq=after_seq):
                if event.metadata.get(COMMAND_ID, 0) >= number:
                    return


async def _read_state(event_log: EventLog, task_id: str) -> RunState:
    return fold_all(await read_log(event_log.read, task_id))
