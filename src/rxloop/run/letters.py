"""What letters to a run come to: events that carry their numbers, or the end of the attempt."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rxloop.errors import InvalidInput
from rxloop.protocol.events import Event, InputReceivedEvent, MessageAddedEvent
from rxloop.protocol.mail import AnswerMail, CancelMail, Mail, SayMail
from rxloop.protocol.messages import Message
from rxloop.run.inputs import credentials, new_answers
from rxloop.run.life import Canceled
from rxloop.state.run_state import MAIL_ID, RunState

log = logging.getLogger("rxloop")

Letters = Sequence[tuple[int, Mail]]
"""Letters in order, each with its number."""


class Taken(NamedTuple):
    """What an attempt takes of the letters that it begins with."""

    cancel: Canceled | None = None
    """Its end, before anything else of the mail could count."""
    news: tuple[Event, ...] = ()
    """The answers and messages, in order."""
    credentials: Mapping[str, Any] = MappingProxyType({})
    """Those that a client has encrypted, by the id of the question."""
    passed: int = 0
    """The highest number of those that come to no event; 0 if there are none."""
    lets_go: str | None = None
    """The later run that has let the questions go before any of them was answered."""

    @property
    def answers(self) -> bool:
        """Whether a question is answered."""
        return bool(self.credentials) or any(isinstance(event, InputReceivedEvent) for event in self.news)


def take(task_id: str, state: RunState, letters: Letters, *, warn: bool = True) -> Taken:
    """Tell what the letters come to that a run has not taken yet.

    An answer that does not fit, or comes too late, is passed over with a warning. So is a cancel of a run that is
    cancelled already: it has what it asked for, and must not end an attempt that somebody has asked for since.

    Args:
        task_id: The run, which is not over.
        state: Where it stands before the attempt.
        letters: Those after `state.mail`.
        warn: Whether to log what comes to nothing.
    """
    if not letters:
        return Taken()
    newest = letters[-1][0]
    cancels = [letter for _, letter in letters if isinstance(letter, CancelMail)]
    if cancels and state.state != "canceled":
        return Taken(Canceled(cancels[0].reason or "cancelled", newest))
    news: list[Event] = []
    encrypted: dict[str, Any] = {}
    passed, later = 0, None
    for number, letter in letters:
        before = len(news)
        if isinstance(letter, AnswerMail):
            encrypted |= credentials(state, letter.inputs)
            for event in answers_in(task_id, state, number, letter, warn=warn):
                news.append(event)
                state = state.changed(answers={**state.answers, event.input_id: event.value})
        elif isinstance(letter, SayMail):
            if letter.lets_go is not None and not Taken(None, tuple(news), encrypted).answers:
                # An answer that comes first keeps the later run from beginning, and one behind is told that it is late.
                later, state = later or letter.lets_go, state.changed(pending={})
            for event in messages_in(state, number, letter):
                news.append(event)
                state = state.changed(held=(*state.held, Message(role=event.role, message_id=event.message_id)))
        if len(news) == before:
            passed = number
    return Taken(None, tuple(news), encrypted, passed, later)


def answers_in(
    task_id: str, state: RunState, number: int, letter: AnswerMail, *, warn: bool = True
) -> Iterator[InputReceivedEvent]:
    """The answers of a letter to questions that are open; one that is there already is passed over in silence."""
    for input_id, value in letter.inputs.items():
        try:
            answers = new_answers(task_id, state, {input_id: value})
        except InvalidInput as error:
            if warn:
                log.warning("letter %s to the run %s comes to nothing: %s", number, task_id, error)
            continue
        for answer in answers.values():
            yield InputReceivedEvent(input_id=input_id, value=answer, metadata={MAIL_ID: number})


def messages_in(state: RunState, number: int, letter: SayMail) -> Iterator[MessageAddedEvent]:
    """The messages of a letter as events."""
    for message in unheard(state, letter):
        yield MessageAddedEvent(
            role="system" if message.role == "system" else "user",
            content=message.content,
            message_id=message.message_id,
            metadata={MAIL_ID: number},
        )


def unheard(state: RunState, letter: SayMail) -> list[Message]:
    """The messages of a letter that the run does not have: who sent one twice did not hear that it had arrived."""
    known = {message.message_id for message in (*state.messages, *state.held)}
    return [message for message in letter.messages if message.message_id is None or message.message_id not in known]
