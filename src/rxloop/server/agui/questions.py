"""The questions of a run, and what a client answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import RunAgentInput, ToolMessage

from rxloop.pipeline.json_schema import misfit
from rxloop.protocol.events import AuthRequiredEvent, Event, InputRequiredEvent, PendingInput, ends_attempt
from rxloop.server.agui.asking import result_of
from rxloop.server.agui.ends import call_of, interrupt_id
from rxloop.server.chat.changes import CallBegan, Change
from rxloop.server.chat.fold import ChatFold
from rxloop.server.refusals import Refused


@dataclass(slots=True)
class Questions:
    """What a run has asked so far.

    Attributes:
        by_interrupt: By what an interrupt is called; those for the client's tools are among them.
        by_call: By the call that a tool of the client is to carry out.
        asked_at: By question: the last event of the attempt that ended with it.
        open: Those that wait.
    """

    by_interrupt: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    by_call: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    asked_at: dict[str, int] = field(default_factory=dict[str, int])
    open: set[str] = field(default_factory=set[str])


def questions_of(events: Sequence[Event]) -> Questions:
    """Find what a run has asked, by its public events."""
    found = Questions()
    slots: dict[tuple[str, str | None, int], str] = {}

    def note(change: Change | Event) -> None:
        if isinstance(change, CallBegan):
            slots[change.event.task_id, change.event.step, change.place] = change.id

    fold = ChatFold(note)
    for event in events:
        shown = event.for_clients()
        if shown is None:
            continue
        fold.take(shown)
        if isinstance(shown, InputRequiredEvent | AuthRequiredEvent):
            found.by_interrupt[interrupt_id(event.root_task_id, shown.input)] = shown.input
        elif ends_attempt(shown):
            pending: list[PendingInput] = getattr(shown, "pending", [])
            found.open = {each.input_id for each in pending}
            for each in pending:
                found.asked_at[each.input_id] = event.seq
                found.by_interrupt[interrupt_id(event.task_id, each)] = each
                call = call_of(event.task_id, each, slots)
                if call is not None and each.input_kind == "tool":
                    found.by_call[call] = each
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
        left = [each for each in found.by_interrupt.values() if each.input_id in found.open - answers.keys()]
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
        case _ if question.secret or misfit(None, question.answer_schema) is None:
            return None
        case _:
            raise Abandoned
