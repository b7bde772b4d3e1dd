"""Help for tests of the grammar: right streams of whole runs, and every way to break them, by name."""

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

Break = Callable[[list[Event]], Sequence[Event]]
"""Makes a broken stream of a right one."""
Place = tuple[str, int]
"""A kind, and which event of it."""


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
def right() -> tuple[Event, ...]:
    """A run of two attempts: one that streams, calls two tools and has to ask, and one that has the answer."""
    log = MemoryEventLog()
    used = Usage(input_tokens=1)
    calls = [call("work", "a", seconds=1), call("sure", "b")]
    asks = turn(frames("-Let-me see.|"), calls=calls, reasoning="Hm.", usage=used)
    with virtual_time() as time:
        run = Agent(ScriptedModel(asks), tools=[work, sure], log=log).run("Go")
        first = time.run(collect(run))
        question = time.run(run.result()).pending[0]
        then = ScriptedModel(call("work", "c", seconds=1), frames("-It is-done.|"))
        agent = Agent(then, tools=[work, sure], log=log)
        second = time.run(collect(agent.resume(run.task_id, inputs={question.input_id: True})))
    return (*first, *second)


@cache
def right_nested() -> tuple[Event, ...]:
    """A run whose tool passes on all events of another agent's run."""
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
def right_beside() -> tuple[Event, ...]:
    """A run of a strategy, with a tool call on a line beside the main one."""
    case = next(case for case in CASES if case.name == "self_ask")
    with virtual_time() as time:
        agent = Agent(ScriptedModel(*case.turns.values()), tools=[add], strategy=case.strategy())
        return tuple(time.run(collect(agent.run("Go"))))


def place(events: Sequence[Event], kind: str, number: int = 0) -> int:
    """Where the event of that kind is; the first is number 0, the last -1."""
    return [at for at, event in enumerate(events) if event.kind == kind][number]


def numbered(events: Sequence[Event]) -> list[Event]:
    """The events with right numbers, so that only what they say is wrong."""
    out: list[Event] = []
    seq = sub = 0
    for event in events:
        seq, sub = (seq + 1, 0) if event.durable else (seq, sub + 1)
        changes: dict[str, Any] = {"seq": seq, "sub": sub}
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            changes["after_seq"] = seq - 1
        out.append(event.model_copy(update=changes))
    return out


def without(*kinds: str) -> Break:
    """The first event of each of these kinds is missing."""

    def broken(events: list[Event]) -> Sequence[Event]:
        gone = {place(events, kind) for kind in kinds}
        return numbered([event for at, event in enumerate(events) if at not in gone])

    return broken


def twice(kind: str, number: int = 0) -> Break:
    """An event comes once more."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = place(events, kind, number)
        return numbered([*events[: at + 1], events[at], *events[at + 1 :]])

    return broken


def moved(one: Place, *, behind: Place) -> Break:
    """An event comes too late, or too early."""

    def broken(events: list[Event]) -> Sequence[Event]:
        event = events[place(events, *one)]
        target = events[place(events, *behind)]
        rest = [each for each in events if each is not event]
        at = rest.index(target) + 1
        return numbered([*rest[:at], event.model_copy(update={"attempt": target.attempt}), *rest[at:]])

    return broken


def changed(kind: str, number: int = 0, **fields: Any) -> Break:
    """An event says something else."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = place(events, kind, number)
        return [*events[:at], events[at].model_copy(update=fields), *events[at + 1 :]]

    return broken


def added(make: Callable[[Event], Event], *, behind: Place) -> Break:
    """There is an event more, made of the one that it follows."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = place(events, *behind)
        before = events[at]
        names = ("context_id", "task_id", "attempt", "timestamp")
        ids = {name: getattr(before, name) for name in names}
        event = make(before)
        return numbered([*events[: at + 1], event.model_copy(update=ids), *events[at + 1 :]])

    return broken


def cut(kind: str, number: int = 0) -> Break:
    """The stream ends behind an event."""
    return lambda events: events[: place(events, kind, number) + 1]


def every(change: Callable[[Event], dict[str, Any]]) -> Break:
    """All events are changed."""
    return lambda events: [event.model_copy(update=change(event)) for event in events]


def then(*breaks: Break) -> Break:
    """One after the other."""

    def broken(events: list[Event]) -> Sequence[Event]:
        for each in breaks:
            events = list(each(events))
        return events

    return broken


def asked(step: str | None) -> LLMCallEvent:
    return LLMCallEvent(step=step, iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)


def another_call(event: Event) -> Any:
    return vars(event)["call"].model_copy(update={"id": "z"})


FINAL = ("status-update", -1)
PAUSE = ("status-update", 1)

BROKEN: dict[str, tuple[str, Break]] = {
    # The beginning and the numbers.
    "the task is missing": ("task-first", without("task")),
    "the task comes twice": ("task-once", added(lambda task: task, behind=("task", 0))),
    "the working state is missing": ("working-second", without("status-update")),
    "the working state comes late": ("working-second", moved(("status-update", 0), behind=("llm-call", 0))),
    "the numbers begin at 2": ("seq", every(lambda event: {"seq": event.seq + 1})),
    "a number is left out": ("seq", changed("tool-start", seq=8)),
    "a number comes twice": ("seq", changed("tool-start", 1, seq=7)),
    "a durable event is lost": ("seq", lambda events: [each for each in events if each.kind != "usage"]),
    "two events have changed places": ("seq", lambda events: [*events[:10], events[11], events[10], *events[12:]]),
    "a delta has the number of another event": ("seq", changed("content-delta", seq=3)),
    "a delta has no number of its own": ("sub", changed("content-delta", sub=0)),
    "a delta comes twice": ("sub", changed("content-delta", 1, sub=1)),
    "a durable event is numbered like a delta": ("sub", changed("usage", sub=5)),
    "an event of another run": ("one-run", changed("usage", task_id="another")),
    "an event of another conversation": ("one-run", changed("usage", context_id="another")),
    # Messages.
    "a delta before the request": ("delta-early", moved(("content-delta", 0), behind=("status-update", 0))),
    "the request is missing": ("delta-early", without("llm-call")),
    "the tokens before the request": ("delta-early", moved(("usage", 0), behind=("status-update", 0))),
    "a delta behind its message": ("delta-late", moved(("content-delta", 1), behind=("content-complete", 0))),
    "a thought behind its message": ("delta-late", moved(("thought-delta", 0), behind=("tool-start", 0))),
    "a message comes twice": ("message-twice", twice("content-complete")),
    "a step is asked for again": (
        "message-twice",
        added(lambda step: asked(step.step), behind=("content-complete", -1)),
    ),
    "a message is cancelled that nobody asked for": (
        "canceled-nothing",
        added(
            lambda message: message.model_copy(update={"step": "9", "finish_reason": "canceled"}),
            behind=("content-complete", -1),
        ),
    ),
    "the last message is missing": (
        "message-open",
        lambda events: numbered([each for each in events if each.step != "3" or each.kind != "content-complete"]),
    ),
    # Calls.
    "a call that is in no message": ("call-unknown", without("content-complete")),
    "a call starts before its message": ("call-unknown", moved(("tool-start", 0), behind=("usage", 0))),
    "a call has a place that its message has not": ("call-unknown", changed("tool-start", 2, index=7)),
    "a call is another one than the message has": (
        "call-other",
        lambda events: changed("tool-start", 2, call=another_call(events[place(events, "tool-start", 2)]))(events),
    ),
    "a call took its time and never started": ("start-missing", without("tool-start")),
    "a call starts twice": ("start-twice", twice("tool-start", 2)),
    "a call starts behind its end": ("start-late", moved(("tool-start", 2), behind=("tool-progress", 1))),
    "a call is answered twice": ("call-twice", twice("tool-complete")),
    "a tool goes on behind its end": ("progress-late", moved(("tool-progress", 1), behind=("tool-complete", -1))),
    "the model is asked though a call is open": (
        "call-unanswered",
        moved(("tool-complete", -1), behind=("llm-call", -1)),
    ),
    "a call has no end": (
        "call-open",
        lambda events: numbered([each for each in events if each.step != "3" and each is not events[28]]),
    ),
    # Questions.
    "a question comes twice": ("question-twice", twice("input-required")),
    "an answer to nothing": (
        "answer-early",
        added(lambda _: InputReceivedEvent(input_id="9", value=1), behind=("status-update", 2)),
    ),
    "a question is answered twice": ("answer-twice", twice("input-received")),
    "a pause without a question": ("question-none", then(without("input-required"), cut(*PAUSE))),
    # Attempts and their ends.
    "an attempt without its beginning": (
        "attempt",
        lambda events: numbered([each for each in events if not vars(each).get("resumed")]),
    ),
    "an attempt is left out": ("attempt", every(lambda event: {"attempt": {1: 1, 2: 3}[event.attempt]})),
    "an attempt that follows another event": ("after-seq", changed("status-update", 2, after_seq=3)),
    "a run goes on that has answered": (
        "ended",
        then(moved(("tool-complete", 1), behind=("tool-complete", 0)), changed("status-update", 1, state="failed")),
    ),
    "the end is missing": ("final-missing", lambda events: events[:-1]),
    "an attempt breaks off": ("final-missing", cut("llm-call")),
    "the end comes twice": ("final-once", twice(*FINAL)),
    "something behind the end": ("final-last", added(lambda end: CustomEvent(name="late"), behind=FINAL)),
    "a status behind the end": (
        "final-last",
        added(lambda end: StatusUpdateEvent(state="working"), behind=FINAL),
    ),
    "the end says that the run works": ("final-state", changed("status-update", -1, state="working")),
}


def of_child(kind: str, change: Callable[[Event], Event | None]) -> Break:
    """The first event of a kind of the nested run is changed, or missing."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = next(at for at, event in enumerate(events) if event.kind == kind and event.parent_task_id)
        new = change(events[at])
        return numbered([*events[:at], *([new] if new is not None else []), *events[at + 1 :]])

    return broken


def beside(kind: str, *, again: bool = False) -> Break:
    """The last event of a kind on a line beside the main one is missing, or comes again."""

    def broken(events: list[Event]) -> Sequence[Event]:
        at = [at for at, event in enumerate(events) if event.kind == kind and event.branch][-1]
        return numbered([*events[:at], *([events[at]] * 2 if again else []), *events[at + 1 :]])

    return broken


def late_child(events: list[Event]) -> Sequence[Event]:
    """Something of the nested run comes behind its end."""
    theirs = [at for at, event in enumerate(events) if event.parent_task_id]
    last = theirs[-1]
    return numbered([*events[: last + 1], events[theirs[2]], *events[last + 1 :]])


BROKEN_NESTED: dict[str, tuple[str, Break]] = {
    "a call of the nested run has no end": ("call-unanswered", of_child("tool-complete", lambda event: None)),
    "a message of the nested run is missing": ("call-unknown", of_child("content-complete", lambda event: None)),
    "a nested run says nothing of its parent": (
        "one-run",
        of_child("llm-call", lambda event: event.model_copy(update={"parent_task_id": None})),
    ),
    "a nested run goes on behind its end": ("final-last", late_child),
    "a number is left out in a nested run": ("seq", lambda events: [*events[:8], *events[11:]]),
    "the first event is of a nested run": ("task-first", lambda events: events[6:]),
}
BROKEN_BESIDE: dict[str, tuple[str, Break]] = {
    "a call beside the main line has no end": ("call-unanswered", beside("tool-complete")),
    "a call beside the main line is answered twice": ("call-twice", beside("tool-complete", again=True)),
    "a message beside the main line is missing": ("message-open", beside("content-complete")),
    "a message beside the main line comes twice": ("message-twice", beside("content-complete", again=True)),
    "a message beside the main line has no request": ("delta-early", beside("llm-call")),
}
