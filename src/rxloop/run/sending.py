"""What somebody wants of a run that he does not hold: cancel it, answer it, say something to it, by way of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
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
from rxloop.coordination.commands import apply_commands, find_new_messages
from rxloop.coordination.order import wait_for_end
from rxloop.errors import AttemptError, ConflictError, InvalidInput, RunOver
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import PATIENCE, read_log
from rxloop.pipeline.snapshot import Snapshot
from rxloop.protocol.commands import AnswerCommand, CancelCommand, MessageCommand
from rxloop.protocol.events import InputReceivedEvent, PendingInput
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Message
from rxloop.run.handle import Run
from rxloop.run.ownership import find_owned
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState

_HEARD_IN = 2.0
"""Seconds in which a message is taken, as a rule: it is durable anyway, and its sender need not wait for ever."""


async def cancel(event_log: EventLog, task_id: str, reason: str, close: Callable[[], Run[Any]]) -> None:
    """Cancel a run that does not go on in this process; see `Agent.cancel`.

    Args:
        event_log: Holds it.
        task_id: The run.
        reason: What its final event says.
        close: Makes an attempt that does nothing but write its end.

    Raises:
        UnknownRun: The log does not have it.
        ConflictError: Somebody else goes on with it, and has not ended it in time.
    """
    state = await _state(event_log, task_id)
    if state.finished or state.state == "canceled":
        return
    letter = await read_log(event_log.send_command, task_id, CancelCommand(reason=reason))
    loop = asyncio.get_running_loop()
    late = loop.time() + PATIENCE
    while not (state.finished or state.state == "canceled" or state.mail >= letter):
        if loop.time() > late:
            raise ConflictError(
                f"the run {task_id} goes on in another process, which has not ended it for {PATIENCE:g} s; it gets to "
                "know of it by its mail"
            )
        if not await _goes_on(event_log, task_id, state) and await _closed(close()):
            return
        await wait_for_end(event_log, task_id, state.seq)
        state = await _state(event_log, task_id)


async def _closed(run: Run[Any]) -> bool:
    """Whether an attempt that is there to end a run has done so; False if somebody else goes on with the run."""
    try:
        await run
    except ConflictError:
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code in ("conflict", "fenced"):
            return False
        raise
    return True


async def _goes_on(event_log: EventLog, task_id: str, state: RunState) -> bool:
    """Whether somebody alive carries the run out elsewhere, as far as the log can tell."""
    if state.state != "working":
        return False
    # Its last event may be one that the log cannot read: the attempt that is to close it says so.
    if (await read_log(event_log.get_record, task_id)).state != "working":
        return False
    orphans = await read_log(event_log.list_orphaned, submitted_limit=0)
    return all(record.task_id != task_id for record in orphans)


async def answer(
    event_log: EventLog,
    task_id: str,
    inputs: Mapping[str, Any],
    *,
    messages: Sequence[Message] = (),
    goes_on_here: bool = False,
) -> dict[str, Any]:
    """Answer questions of a run; see `Agent.answer`.

    Args:
        event_log: Holds it.
        task_id: The run.
        inputs: The answers.
        messages: What the person says with the answers; it enters the history only if the answers count.
        goes_on_here: Whether the caller goes on with the run itself, so that he may have credentials.

    Returns:
        The credentials that no mail may have, since they are not encrypted.

    Raises:
        InvalidInput: The run does not wait for an answer, has another one, or the answer does not fit the question.
    """
    await wait_stored(event_log, task_id)
    snapshot = await read_log(event_log.snapshot, task_id)
    new, state = _to_answer(snapshot, inputs), snapshot.state
    plain = find_plain_credentials(state, inputs)
    if plain and not goes_on_here:
        raise InvalidInput(
            f"the answer to {', '.join(plain)} is a credential, which no log is to keep: resume the run with it, by "
            f"agent.resume({task_id!r}, inputs=...), or have the tool ask with public_key=, for ciphertext"
        )
    encrypted = {key: value for key, value in find_credentials(state, inputs).items() if key not in plain}
    if new or encrypted:
        letter = AnswerCommand(inputs=new | encrypted, messages=list(messages))
        number = await read_log(event_log.send_command, task_id, letter)
        # Of those that found the question open at the same moment the first one counts: another answer, or a later run
        # that lets the question go.
        snapshot = await read_log(event_log.snapshot, task_id, since=snapshot)
        _to_answer(snapshot, new, before=number, beside=encrypted)
    elif plain and messages:
        await say(event_log, task_id, messages, interrupt=False)
    return plain


async def wait_stored(event_log: EventLog, task_id: str) -> None:
    """Wait until the log has all events that readers of a run in this process have seen, such as a question.

    Args:
        event_log: The log.
        task_id: The run. If another process executes it, there is nothing to wait for.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        await hold.durable()


async def open_questions(event_log: EventLog, task_id: str) -> list[PendingInput]:
    """Return the questions of a run that have no answer yet, also while other calls of the run are at work.

    Args:
        event_log: Holds the run. Its events are read if the run is executed by another process.
        task_id: The run.

    Raises:
        UnknownRun: The log does not have it.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        return hold.pending
    return list((await _state(event_log, task_id)).pending.values())


def _to_answer(
    snapshot: Snapshot, inputs: Mapping[str, Any], *, before: float = inf, beside: Collection[str] = ()
) -> dict[str, Any]:
    """The answers that a run has not got yet, by its mail up to that letter; `beside` are credentials in the letter.

    Raises:
        InvalidInput: As for `answer`.
    """
    task_id, state = snapshot.task_id, snapshot.state
    if not inputs.keys() <= state.answers.keys():
        check_not_superseded(task_id, state)
    open_yet = not (inputs.keys() <= state.answers.keys() and state.pending.keys().isdisjoint(beside))
    if open_yet:
        check_not_dropped(task_id, state, snapshot.later)
    earlier = [command for command in snapshot.new_commands if command[0] < before]
    taken = apply_commands(task_id, state, earlier, warn=False)
    known = {event.input_id: event.value for event in taken.news if isinstance(event, InputReceivedEvent)}
    if open_yet and taken.dropped_by is not None:
        raise make_dropped_error(task_id, state, taken.dropped_by, snapshot.record.context_id)
    return new_answers(task_id, state.changed(answers={**state.answers, **known}), inputs)


async def say(event_log: EventLog, task_id: str, messages: Sequence[Message], *, interrupt: bool) -> None:
    """Send messages to a run; see `Agent.say`.

    Raises:
        RunOver: The run is over, was cancelled, or waits for an answer that a later run has made void.
        ConfigurationError: The log has no mail.
    """
    snapshot = await read_log(event_log.snapshot, task_id)
    state, later = snapshot.state, snapshot.later
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
    # By its id a message is known that was sent twice, since nobody heard that it had arrived.
    named = [
        message if message.message_id is not None else message.model_copy(update={"message_id": f"said:{make_id()}"})
        for message in messages
    ]
    letter = MessageCommand(messages=named, interrupt=interrupt)
    number = await read_log(event_log.send_command, task_id, letter)
    state = await _state(event_log, task_id)
    if state.mail < number and await _goes_on(event_log, task_id, state):
        # Whoever goes on with the run takes it at once, unless its end is decided and not yet in the log.
        await _heard(event_log, task_id, state.seq, number)
        state = await _state(event_log, task_id)
    if state.finished and find_new_messages(state, letter):
        raise RunOver(
            f"the run {task_id} came to its end meanwhile, and was not told: begin a new run in its conversation"
        )


async def _heard(event_log: EventLog, task_id: str, after_seq: int, number: int) -> None:
    """Wait until a run has taken a letter, or comes to rest; one that waits behind an answer takes longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_HEARD_IN):
            async for event in event_log.follow(task_id, after_seq=after_seq):
                if event.metadata.get("mail_id", 0) >= number:
                    return


async def _state(event_log: EventLog, task_id: str) -> RunState:
    return fold_all(await read_log(event_log.read, task_id))
