"""Pending inputs of a run, and the answers of a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import RunAgentInput, ToolMessage

from rxloop.protocol.events import (
    AuthRequiredEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    PendingInput,
    ends_attempt,
)
from rxloop.server.agui.frames import call_of, interrupt_id
from rxloop.server.agui.requests import result_of
from rxloop.server.core.chat_changes import CallBegan, Change
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.errors import Refused
from rxloop.support.json_schema import find_misfit


@dataclass(slots=True)
class Questions:
    """What a run has asked so far.

    Attributes:
        by_interrupt: By what an interrupt is called; those for the client's tools are among them.
        by_call: By the call that a tool of the client is to carry out.
        asked_at: By question: the last event of the attempt that ended with it.
        open: The questions of the last pause, answered or not.
        early: The questions that the attempt under way has asked, and that have no answer.
        answered: The questions that have an answer.
    """

    by_interrupt: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    by_call: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    asked_at: dict[str, int] = field(default_factory=dict[str, int])
    open: set[str] = field(default_factory=set[str])
    early: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])


def questions_of(events: Sequence[Event]) -> Questions:
    """Find what a run has asked, by its public events."""
    found = Questions()
    slots: dict[tuple[str, str | None, int], str] = {}

    def note(change: Change | Event) -> None:
        if isinstance(change, CallBegan):
            slots[change.event.task_id, change.event.step, change.place] = change.id

    def find_call(root: str, question: PendingInput) -> None:
        call = call_of(root, question, slots)
        if call is not None and question.input_kind == "tool":
            found.by_call[call] = question

    fold = ChatFold(note)
    for event in events:
        if isinstance(event, InputReceivedEvent):
            # The client may not see the answer of another person, but the question is closed.
            found.answered.add(event.input_id)
            found.early.discard(event.input_id)
        shown = event.to_public()
        if shown is None:
            continue
        fold.take(shown)
        if isinstance(shown, InputRequiredEvent | AuthRequiredEvent):
            found.by_interrupt[interrupt_id(event.root_task_id, shown.input)] = shown.input
            found.early.add(shown.input.input_id)
            found.answered.discard(shown.input.input_id)
            find_call(event.root_task_id, shown.input)
        elif ends_attempt(shown):
            pending: list[PendingInput] = getattr(shown, "pending", [])
            found.open = {each.input_id for each in pending}
            found.early.clear()
            for each in pending:
                found.asked_at[each.input_id] = event.seq
                found.by_interrupt[interrupt_id(event.task_id, each)] = each
                find_call(event.task_id, each)
    return found


class Abandoned(Exception):
    """A question is declined that has no answer which says so: the run cannot go on."""


def answers_to(asked: RunAgentInput, found: Questions) -> dict[str, Any]:
    """What a client answers, by question; empty if it answers none of this run.

    Raises:
        Abandoned: It does not want to answer, and the question leaves no way to say so.
        Refused: It answers what was not asked, or not all that waits.
    """
    answers: dict[str, Any] = {}
    for message in asked.messages:
        if isinstance(message, ToolMessage) and (question := found.by_call.get(message.tool_call_id)) is not None:
            answers[question.input_id] = result_of(message)
    for entry in asked.resume or ():
        question = found.by_interrupt.get(entry.interrupt_id)
        if question is None:
            raise Refused(409, "not_waiting", "the thread does not wait for this answer")
        answers[question.input_id] = entry.payload if entry.status == "resolved" else _declined(question)
    if asked.resume:
        waiting = found.open - found.answered - answers.keys()
        left = [each for each in found.by_interrupt.values() if each.input_id in waiting]
        if any(each.input_kind != "tool" for each in left):
            raise Refused(422, "uncovered_interrupts", "the resume has to answer all interrupts of the thread")
    return answers


def _declined(question: PendingInput) -> Any:
    """The answer of somebody who does not want to answer."""
    match question.input_kind:
        case "confirmation":
            return False
        case "tool":
            return {"error": "declined"}
        case _ if question.secret or find_misfit(None, question.answer_schema) is None:
            return None
        case _:
            raise Abandoned
