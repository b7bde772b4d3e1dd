"""Timelines of events in marble notation, observed live or replayed.

    --t--l--(dd)--F|

A letter is an event. Each letter and each `-` takes one second. Events in parentheses are simultaneous. `|` ends the
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import reactivex as rx
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.operators import View
from rxloop.protocol.events import PendingInput
from rxloop.protocol.messages import ToolCall

BEGIN = 1_700_000_000
"""Unix time of second 0, in seconds."""

CALL = ToolCall(id="call_1", name="look", arguments={"at": 1})
OTHER_CALL = ToolCall(id="call_2", name="search")
LETTERS: dict[str, Event] = {
    "t": TaskEvent(messages=[], model="m", agent_name="agent"),
    "w": StatusUpdateEvent(state="working"),
    "W": StatusUpdateEvent(state="working", resumed=True),
    "l": LLMCallEvent(step="1", iteration=1, model="m", message_count=1, tool_count=1, estimated_input_tokens=1),
    "d": ContentDeltaEvent(step="1", delta="a"),
    "u": UsageEvent(step="1", input_tokens=100, output_tokens=12),
    "c": ContentCompleteEvent(step="1", tool_calls=[CALL, OTHER_CALL]),
    "s": ToolStartEvent(step="1", call=CALL, idempotency_key="k"),
    "x": ToolCompleteEvent(step="1", call=CALL, success=True, content="ok"),
    "S": ToolStartEvent(step="1", index=1, call=OTHER_CALL, idempotency_key="k"),
    "X": ToolCompleteEvent(step="1", index=1, call=OTHER_CALL, success=True, content="ok"),
    "i": InputRequiredEvent(step="1", input=PendingInput(input_id="q", prompt="Sure?", call=CALL, step="1")),
    "r": InputReceivedEvent(step="1", input_id="q", value=True),
    "F": StatusUpdateEvent(state="completed", final=True),
    "P": StatusUpdateEvent(state="input-required", final=True),
}


def nest_event(event: Event, task_id: str = "child", parent: str = "run") -> Event:
    """Return the event as part of a nested run."""
    return event.model_copy(update={"task_id": task_id, "parent_task_id": parent})


def parse_timeline(line: str, **more: Event) -> tuple[list[tuple[int, Event]], int | None]:
    """Parse a timeline to events with times in seconds, and the time of its end."""
    events = {**LETTERS, **more}
    second, grouped = 0, False
    timed_events: list[tuple[int, Event]] = []
    end: int | None = None
    for char in line:
        match char:
            case "(":
                grouped = True
            case ")":
                grouped, second = False, second + 1
            case _:
                if char == "|":
                    end = second
                elif char != "-":
                    timed_events.append((second, stamp(events[char], second)))
                second += not grouped
    return timed_events, end


def stamp(event: Event, second: float) -> Event:
    """Set the timestamp of an event."""
    changes: dict[str, Any] = {"timestamp": round((BEGIN + second) * 1000)}
    return event.model_copy(update=changes if event.task_id else {**changes, "task_id": "run"})


def observe_live(view: View[Event, Any], line: str, *, until: int = 500, **more: Event) -> list[tuple[int, Any]]:
    """Collect a view's values and times for live events. `|` is completion, `#` is an error."""
    scheduler = TestScheduler()
    events, end = parse_timeline(line, **more)
    messages: list[Recorded[Any]] = [ReactiveTest.on_next(200 + second, event) for second, event in events]
    if end is not None:
        messages.append(ReactiveTest.on_completed(200 + end))
    source = scheduler.create_hot_observable(*messages)
    # Items scheduled earlier run first, so events precede timers of the same instant.
    seen = scheduler.start(lambda: source.pipe(view), disposed=200 + until)
    unsubscribed = source.subscriptions[0].unsubscribe
    assert unsubscribed == 200 + (until if end is None else end)
    active_timers = [item for item, _ in scheduler._queue.items if not item.is_cancelled()]
    assert active_timers == [], "a timer outlived the subscription"
    ends = {"C": "|", "E": "#"}
    emissions = cast("list[Any]", seen.messages)
    return [(int(each.time) - 200, ends.get(each.value.kind) or each.value.value) for each in emissions]


def observe_recorded(view: View[Event, Any], line: str, **more: Event) -> list[Any]:
    """Collect a view's values for recorded events, without delays."""
    return collect_values(view, (event for _, event in parse_timeline(line, **more)[0]))


def collect_values(view: View[Event, Any], events: Iterable[Event]) -> list[Any]:
    """Return the values of a view for recorded events."""
    seen: list[Any] = []
    ended: list[bool] = []
    rx.from_iterable(events).pipe(view).subscribe(seen.append, on_completed=lambda: ended.append(True))
    assert ended == [True]
    return seen


def format_timeline(values: Iterable[tuple[int, Any]], format_value: Callable[[Any], str]) -> str:
    """Format timed values as a timeline."""
    line, position = "", 0
    instants: dict[int, str] = {}
    for second, value in values:
        instants[second] = instants.get(second, "") + (value if value in ("|", "#") else format_value(value))
    for second, marks in instants.items():
        line += "-" * (second - position) + (marks if len(marks) == 1 else f"({marks})")
        position = second + 1
    return line
