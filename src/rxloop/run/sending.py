"""What somebody wants of a run that he does not hold: cancel it, answer it, say something to it, by way of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from rxloop.errors import AttemptError, ConfigurationError, ConflictError, InvalidInput, RunOver
from rxloop.pipeline.log_retry import PATIENCE
from rxloop.pipeline.logs import EventLog, Mailbox, TakesTurns
from rxloop.protocol.events import InputReceivedEvent
from rxloop.protocol.mail import AnswerMail, CancelMail, SayMail
from rxloop.protocol.messages import Message
from rxloop.run.earlier import over_or_later
from rxloop.run.handle import Run
from rxloop.run.ids import new_id
from rxloop.run.inputs import check_not_let_go, credentials, later_run, let_go, new_answers, plain_credentials
from rxloop.run.letters import take, unheard
from rxloop.run.ownership import alive
from rxloop.state.conversation import read_log
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
    letter = 0
    if isinstance(event_log, Mailbox):
        letter = await read_log(event_log.send, task_id, CancelMail(reason=reason))
    loop = asyncio.get_running_loop()
    late = loop.time() + PATIENCE
    while not (state.finished or state.state == "canceled" or (letter and state.mail >= letter)):
        if loop.time() > late:
            raise ConflictError(
                f"the run {task_id} goes on in another process, which has not ended it for {PATIENCE:g} s; it gets to "
                "know of it by its mail"
            )
        if not await _goes_on(event_log, task_id, state):
            if await _closed(close()):
                return
            if not letter:
                raise ConflictError(
                    f"the run {task_id} goes on in another process, and cannot be cancelled from here: cancel it there"
                )
        await over_or_later(event_log, task_id, state.seq)
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
    if state.state != "working" or not isinstance(event_log, TakesTurns):
        return False
    # Its last event may be one that the log cannot read: the attempt that is to close it says so.
    if (await read_log(event_log.record, task_id)).state != "working":
        return False
    orphans = await read_log(event_log.orphans, submitted_limit=0)
    return all(record.task_id != task_id for record in orphans)


async def answer(
    event_log: EventLog, task_id: str, inputs: Mapping[str, Any], *, goes_on_here: bool = False
) -> dict[str, Any]:
    """Answer questions of a run; see `Agent.answer`.

    Args:
        event_log: Holds it.
        task_id: The run.
        inputs: The answers.
        goes_on_here: Whether the caller goes on with the run itself, so that he may have credentials.

    Returns:
        The credentials that no mail may have, since they are not encrypted.

    Raises:
        InvalidInput: The run does not wait for an answer, has another one, or the answer does not fit the question.
    """
    mailbox = _mailbox(event_log, "agent.resume(task_id, inputs=...) answers")
    hold = alive(task_id)
    if hold is not None:
        # Who reads the run here knows a question before the log does.
        await hold.durable()
    new = await _to_answer(event_log, mailbox, task_id, inputs)
    state = await _state(event_log, task_id)
    plain = plain_credentials(state, inputs)
    if plain and not goes_on_here:
        raise InvalidInput(
            f"the answer to {', '.join(plain)} is a credential, which no log is to keep: resume the run with it, by "
            f"agent.resume({task_id!r}, inputs=...), or have the tool ask with public_key=, for ciphertext"
        )
    encrypted = {key: value for key, value in credentials(state, inputs).items() if key not in plain}
    if new or encrypted:
        number = await read_log(mailbox.send, task_id, AnswerMail(inputs=new | encrypted))
        # Of those that found the question open at the same moment the first one counts: another answer, or a later run
        # that lets the question go.
        await _to_answer(event_log, mailbox, task_id, new, before=number, beside=encrypted)
    return plain


async def _to_answer(
    event_log: EventLog,
    mailbox: Mailbox,
    task_id: str,
    inputs: Mapping[str, Any],
    *,
    before: float = inf,
    beside: Collection[str] = (),
) -> dict[str, Any]:
    """The answers that a run has not got yet, by its mail up to that letter; `beside` are credentials in the letter.

    Raises:
        InvalidInput: As for `answer`.
    """
    events = await read_log(event_log.read, task_id)
    state = fold_all(events)
    open_yet = not (inputs.keys() <= state.answers.keys() and state.pending.keys().isdisjoint(beside))
    if open_yet:
        check_not_let_go(task_id, state, await read_log(event_log.runs, context_id=events[0].context_id))
    letters = await read_log(mailbox.mail, task_id, after=state.mail)
    taken = take(task_id, state, [letter for letter in letters if letter[0] < before], warn=False)
    known = {event.input_id: event.value for event in taken.news if isinstance(event, InputReceivedEvent)}
    if open_yet and taken.lets_go is not None:
        raise let_go(task_id, state, taken.lets_go, events[0].context_id)
    return new_answers(task_id, state.changed(answers={**state.answers, **known}), inputs)


async def say(event_log: EventLog, task_id: str, messages: Sequence[Message], *, interrupt: bool) -> None:
    """Send messages to a run; see `Agent.say`.

    Raises:
        RunOver: The run is over, was cancelled, or waits for an answer that a later run has made void.
        ConfigurationError: The log has no mail.
    """
    events = await read_log(event_log.read, task_id)
    state = fold_all(events)
    if state.finished:
        raise RunOver(
            f"the run {task_id} is {state.state}, and nothing can be said to it: begin a new run in its conversation"
        )
    if state.state == "canceled":
        raise RunOver(
            f"the run {task_id} is canceled, and nobody goes on with it: begin a new run in its conversation, or "
            "resume it and say it there"
        )
    records = await read_log(event_log.runs, context_id=events[0].context_id) if state.pending else ()
    later = later_run(task_id, records)
    if later is not None:
        raise RunOver(
            f"the later run {later.task_id} has dropped its question, and nobody goes on with the run {task_id}: begin "
            "a new run in its conversation"
        )
    mailbox = _mailbox(event_log, "run.say(...) goes")
    # By its id a message is known that was sent twice, since nobody heard that it had arrived.
    named = [
        message if message.message_id is not None else message.model_copy(update={"message_id": f"said:{new_id()}"})
        for message in messages
    ]
    letter = SayMail(messages=named, interrupt=interrupt)
    number = await read_log(mailbox.send, task_id, letter)
    state = await _state(event_log, task_id)
    if state.mail < number and await _goes_on(event_log, task_id, state):
        # Whoever goes on with the run takes it at once, unless its end is decided and not yet in the log.
        await _heard(event_log, task_id, state.seq, number)
        state = await _state(event_log, task_id)
    if state.finished and unheard(state, letter):
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


def _mailbox(event_log: EventLog, other: str) -> Mailbox:
    if not isinstance(event_log, Mailbox):
        raise ConfigurationError(
            f"{type(event_log).__name__} has no mail (send, mail and watch): {other} without, where the run goes on"
        )
    return event_log


async def _state(event_log: EventLog, task_id: str) -> RunState:
    return fold_all(await read_log(event_log.read, task_id))
