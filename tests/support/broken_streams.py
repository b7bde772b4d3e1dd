"""Valid event streams and named mutations that violate their grammar."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    InputReceivedEvent,
    LLMCallEvent,
    MemoryEventLog,
    RunContext,
    StatusUpdateEvent,
    Usage,
    tool,
)
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import collect
from support.strategy_cases import CASES, add

Mutation = Callable[[list[Event]], Sequence[Event]]
"""Modification that makes a stream invalid."""
Position = tuple[str, int]
"""Event kind and its occurrence in the stream."""


@tool
async def work(ctx: RunContext[Any], seconds: float) -> float:
    """Takes its time."""
    ctx.progress("begun")
    await asyncio.sleep(seconds)
    return seconds


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Asks."""
    return "yes" if await ctx.ask("Sure?") else "no"


@cache
def valid_stream() -> tuple[Event, ...]:
    """Return a run with two attempts: it streams, calls two tools, pauses, and resumes."""
    log = MemoryEventLog()
    usage = Usage(input_tokens=1)
    calls = [call("work", "a", seconds=1), call("sure", "b")]
    first_turn = turn(frames("-Let-me see.|"), calls=calls, reasoning="Hm.", usage=usage)
    with virtual_time() as time:
        run = Agent(ScriptedModel(first_turn), tools=[work, sure], log=log).run("Go")
        first_attempt = time.run(collect(run))
        question = time.run(run.result()).pending[0]
        model = ScriptedModel(call("work", "c", seconds=1), frames("-It is-done.|"))
        agent = Agent(model, tools=[work, sure], log=log)
        second_attempt = time.run(collect(agent.resume(run.task_id, inputs={question.input_id: True})))
    return (*first_attempt, *second_attempt)


@cache
def valid_nested_stream() -> tuple[Event, ...]:
    """Return a run whose tool emits all events of a nested run."""
    child = Agent(ScriptedModel(call("work", seconds=1), "child says"), tools=[work], name="child")

    @tool
    async def delegate(ctx: RunContext[Any]) -> str:
        """Asks another agent."""
        run = child.run("And?")
        async for event in run:
            ctx.emit(event)
        return (await run).output

    with virtual_time() as time:
        agent = Agent(ScriptedModel(call("delegate"), "parent says"), tools=[delegate])
        return tuple(time.run(collect(agent.run("Go"))))


@cache
def valid_branched_stream() -> tuple[Event, ...]:
    """Return a strategy run with a tool call on a branch."""
    case = next(case for case in CASES if case.name == "self_ask")
    with virtual_time() as time:
        agent = Agent(ScriptedModel(*case.turns.values()), tools=[add], strategy=case.strategy())
        return tuple(time.run(collect(agent.run("Go"))))


def find_position(events: Sequence[Event], kind: str, number: int = 0) -> int:
    """Return the index of an event by kind. `number` can be negative."""
    return [at for at, event in enumerate(events) if event.kind == kind][number]


def renumber(events: Sequence[Event]) -> list[Event]:
    """Assign correct sequence numbers, so that only the intended rule is violated."""
    out: list[Event] = []
    seq = sub = 0
    for event in events:
        seq, sub = (seq + 1, 0) if event.durable else (seq, sub + 1)
        changes: dict[str, Any] = {"seq": seq, "sub": sub}
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            changes["after_seq"] = seq - 1
        out.append(event.model_copy(update=changes))
    return out


def remove(*kinds: str) -> Mutation:
    """Remove each kind's first event."""

    def broken(events: list[Event]) -> Sequence[Event]:
        gone = {find_position(events, kind) for kind in kinds}
        return renumber([event for at, event in enumerate(events) if at not in gone])

    return broken


def duplicate(kind: str, number: int = 0) -> Mutation:
    """Repeat an event."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = find_position(events, kind, number)
        return renumber([*events[: at + 1], events[at], *events[at + 1 :]])

    return broken


def move(one: Position, *, after: Position) -> Mutation:
    """Move an event to another position."""

    def broken(events: list[Event]) -> Sequence[Event]:
        event = events[find_position(events, *one)]
        target = events[find_position(events, *after)]
        rest = [each for each in events if each is not event]
        at = rest.index(target) + 1
        return renumber([*rest[:at], event.model_copy(update={"attempt": target.attempt}), *rest[at:]])

    return broken


def change(kind: str, number: int = 0, **fields: Any) -> Mutation:
    """Change event fields."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = find_position(events, kind, number)
        return [*events[:at], events[at].model_copy(update=fields), *events[at + 1 :]]

    return broken


def insert(make: Callable[[Event], Event], *, after: Position) -> Mutation:
    """Insert an event created from the event before it."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = find_position(events, *after)
        before = events[at]
        names = ("context_id", "task_id", "attempt", "timestamp")
        ids = {name: getattr(before, name) for name in names}
        event = make(before)
        return renumber([*events[: at + 1], event.model_copy(update=ids), *events[at + 1 :]])

    return broken


def truncate(kind: str, number: int = 0) -> Mutation:
    """Truncate the stream after an event."""
    return lambda events: events[: find_position(events, kind, number) + 1]


def change_all(change: Callable[[Event], dict[str, Any]]) -> Mutation:
    """Apply changes to all events."""
    return lambda events: [event.model_copy(update=change(event)) for event in events]


def chain(*breaks: Mutation) -> Mutation:
    """Apply several mutations in order."""

    def broken(events: list[Event]) -> Sequence[Event]:
        for each in breaks:
            events = list(each(events))
        return events

    return broken


def llm_call(step: str | None) -> LLMCallEvent:
    return LLMCallEvent(step=step, iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)


def change_call_id(event: Event) -> Any:
    return vars(event)["call"].model_copy(update={"id": "z"})


FINAL = ("status-update", -1)
PAUSE = ("status-update", 1)

BROKEN: dict[str, tuple[str, Mutation]] = {
    # Start of the run and sequence numbers.
    "the task is missing": ("task-first", remove("task")),
    "the task comes twice": ("task-once", insert(lambda task: task, after=("task", 0))),
    "the working state is missing": ("working-second", remove("status-update")),
    "the working state comes late": ("working-second", move(("status-update", 0), after=("llm-call", 0))),
    "the numbers begin at 2": ("seq", change_all(lambda event: {"seq": event.seq + 1})),
    "a number is left out": ("seq", change("tool-start", seq=8)),
    "a number comes twice": ("seq", change("tool-start", 1, seq=7)),
    "a durable event is lost": ("seq", lambda events: [each for each in events if each.kind != "usage"]),
    "two events have changed places": ("seq", lambda events: [*events[:10], events[11], events[10], *events[12:]]),
    "a delta has the number of another event": ("seq", change("content-delta", seq=3)),
    "a delta has no number of its own": ("sub", change("content-delta", sub=0)),
    "a delta comes twice": ("sub", change("content-delta", 1, sub=1)),
    "a durable event is numbered like a delta": ("sub", change("usage", sub=5)),
    "an event of another run": ("one-run", change("usage", task_id="another")),
    "an event of another conversation": ("one-run", change("usage", context_id="another")),
    # Messages.
    "a delta before the request": ("delta-early", move(("content-delta", 0), after=("status-update", 0))),
    "the request is missing": ("delta-early", remove("llm-call")),
    "the tokens before the request": ("delta-early", move(("usage", 0), after=("status-update", 0))),
    "a delta behind its message": ("delta-late", move(("content-delta", 1), after=("content-complete", 0))),
    "a thought behind its message": ("delta-late", move(("thought-delta", 0), after=("tool-start", 0))),
    "a message comes twice": ("message-twice", duplicate("content-complete")),
    "a step is asked for again": (
        "message-twice",
        insert(lambda step: llm_call(step.step), after=("content-complete", -1)),
    ),
    "a message is cancelled that nobody asked for": (
        "canceled-nothing",
        insert(
            lambda message: message.model_copy(update={"step": "9", "finish_reason": "canceled"}),
            after=("content-complete", -1),
        ),
    ),
    "the last message is missing": (
        "message-open",
        lambda events: renumber([each for each in events if each.step != "3" or each.kind != "content-complete"]),
    ),
    # Calls.
    "a call that is in no message": ("call-unknown", remove("content-complete")),
    "a call starts before its message": ("call-unknown", move(("tool-start", 0), after=("usage", 0))),
    "a call has a place that its message has not": ("call-unknown", change("tool-start", 2, index=7)),
    "a call is another one than the message has": (
        "call-other",
        lambda events: change("tool-start", 2, call=change_call_id(events[find_position(events, "tool-start", 2)]))(
            events
        ),
    ),
    "a call took its time and never started": ("start-missing", remove("tool-start")),
    "a call starts twice": ("start-twice", duplicate("tool-start", 2)),
    "a call starts behind its end": ("start-late", move(("tool-start", 2), after=("tool-progress", 1))),
    "a call is answered twice": ("call-twice", duplicate("tool-complete")),
    "a tool goes on behind its end": ("progress-late", move(("tool-progress", 1), after=("tool-complete", -1))),
    "the model is asked though a call is open": (
        "call-unanswered",
        move(("tool-complete", -1), after=("llm-call", -1)),
    ),
    "a call has no end": (
        "call-open",
        lambda events: renumber([each for each in events if each.step != "3" and each is not events[28]]),
    ),
    # Questions.
    "a question comes twice": ("question-twice", duplicate("input-required")),
    "an answer to nothing": (
        "answer-early",
        insert(lambda _: InputReceivedEvent(input_id="9", value=1), after=("status-update", 2)),
    ),
    "a question is answered twice": ("answer-twice", duplicate("input-received")),
    "a pause without a question": ("question-none", chain(remove("input-required"), truncate(*PAUSE))),
    # Attempts and final events.
    "an attempt without its beginning": (
        "attempt",
        lambda events: renumber([each for each in events if not vars(each).get("resumed")]),
    ),
    "an attempt is left out": ("attempt", change_all(lambda event: {"attempt": {1: 1, 2: 3}[event.attempt]})),
    "an attempt that follows another event": ("after-seq", change("status-update", 2, after_seq=3)),
    "a run goes on that has answered": (
        "ended",
        chain(move(("tool-complete", 1), after=("tool-complete", 0)), change("status-update", 1, state="failed")),
    ),
    "the end is missing": ("final-missing", lambda events: events[:-1]),
    "an attempt breaks off": ("final-missing", truncate("llm-call")),
    "the end comes twice": ("final-once", duplicate(*FINAL)),
    "something behind the end": ("final-last", insert(lambda end: CustomEvent(name="late"), after=FINAL)),
    "a status behind the end": (
        "final-last",
        insert(lambda end: StatusUpdateEvent(state="working"), after=FINAL),
    ),
    "the end says that the run works": ("final-state", change("status-update", -1, state="working")),
}


def change_in_child(kind: str, change: Callable[[Event], Event | None]) -> Mutation:
    """Change or remove the first event of a kind in the nested run."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = next(at for at, event in enumerate(events) if event.kind == kind and event.parent_task_id)
        new = change(events[at])
        return renumber([*events[:at], *([new] if new is not None else []), *events[at + 1 :]])

    return broken


def change_in_branch(kind: str, *, duplicated: bool = False) -> Mutation:
    """Remove or repeat the last event of a kind on a branch."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = [at for at, event in enumerate(events) if event.kind == kind and event.branch][-1]
        return renumber([*events[:at], *([events[at]] * 2 if duplicated else []), *events[at + 1 :]])

    return broken


def append_late_child_event(events: list[Event]) -> Sequence[Event]:
    """Insert a nested event after the end of its run."""
    theirs = [at for at, event in enumerate(events) if event.parent_task_id]
    last = theirs[-1]
    return renumber([*events[: last + 1], events[theirs[2]], *events[last + 1 :]])


BROKEN_NESTED: dict[str, tuple[str, Mutation]] = {
    "a call of the nested run has no end": ("call-unanswered", change_in_child("tool-complete", lambda event: None)),
    "a message of the nested run is missing": ("call-unknown", change_in_child("content-complete", lambda event: None)),
    "a nested run says nothing of its parent": (
        "one-run",
        change_in_child("llm-call", lambda event: event.model_copy(update={"parent_task_id": None})),
    ),
    "a nested run goes on behind its end": ("final-last", append_late_child_event),
    "a number is left out in a nested run": ("seq", lambda events: [*events[:8], *events[11:]]),
    "the first event is of a nested run": ("task-first", lambda events: events[6:]),
}
BROKEN_BRANCHES: dict[str, tuple[str, Mutation]] = {
    "a call beside the main line has no end": ("call-unanswered", change_in_branch("tool-complete")),
    "a call beside the main line is answered twice": ("call-twice", change_in_branch("tool-complete", duplicated=True)),
    "a message beside the main line is missing": ("message-open", change_in_branch("content-complete")),
    "a message beside the main line comes twice": (
        "message-twice",
        change_in_branch("content-complete", duplicated=True),
    ),
    "a message beside the main line has no request": ("delta-early", change_in_branch("llm-call")),
}
