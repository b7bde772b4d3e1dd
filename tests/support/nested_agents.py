"""Nested agents, and checks for their event streams."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from typing import Any

from reactivex import from_iterable

from rxloop import Agent, Event, MemoryEventLog, StatusUpdateEvent, Usage, op, tool
from rxloop.protocol.events import UsageEvent
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.runs import collect


@tool
async def search(question: str) -> str:
    """Looks a question up."""
    return f"{question}: found"


def turn_with_usage(text: str, number: int = 10) -> Any:
    """Return a turn with token usage."""
    return turn(text, usage=Usage(input_tokens=number, output_tokens=1))


def researcher(*turns: Any, **fields: Any) -> Agent:
    """Return the nested agent. By default, it searches once."""
    script = turns or (call("search", question="Oslo"), turn_with_usage("A capital."))
    options: dict[str, Any] = {"name": "researcher", "tools": [search], "thoughts": False, **fields}
    return Agent(ScriptedModel(*script), **options)


def editor(*tools: Any, turns: Sequence[Any] = (), **fields: Any) -> Agent:
    """Create an agent that calls the researcher, by default once."""
    script = turns or (call("research", prompt="Oslo?"), turn_with_usage("A page."))
    options: dict[str, Any] = {"name": "editor", "thoughts": False, "log": MemoryEventLog(), **fields}
    return Agent(ScriptedModel(*script), tools=tools, **options)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a virtual clock."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with virtual_time() as time:
            time.run(test(**fixtures))

    return run


async def collect_checked(run: AsyncIterable[Event]) -> list[Event]:
    """Collect and check a run's events."""
    events = await collect(run)
    check_attempt(events)
    return events


def check_attempt(events: Sequence[Event]) -> None:
    """Check one attempt. Nested runs must end before their parents."""
    check_attempts(events)
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    started = {event.task_id for event in events if event.agent_path or event.parent_task_id is None}
    assert sorted(event.task_id for event in ends) == sorted(started), "every run has one final event"
    positions = {event.task_id: position for position, event in enumerate(ends)}
    for event in ends:
        if event.parent_task_id is not None:
            assert positions[event.task_id] < positions[event.parent_task_id]
    assert {event.root_task_id for event in events} == {ends[-1].task_id}


def check_attempts(events: Sequence[Event]) -> None:
    """Check the grammar of a run's attempts."""
    errors: list[Exception] = []
    # Reactivex discards exceptions that the callback raises.
    from_iterable(events).pipe(op.grammar()).subscribe(on_error=errors.append)
    for error in errors:
        raise error


def filter_by_path(events: Sequence[Event], *path: str) -> list[Event]:
    """Filter events by agent path."""
    return [event for event in events if event.agent_path == path]


def total_usage(events: Sequence[Event]) -> Usage:
    """Add up the usage of all model calls."""
    return sum((event.usage for event in events if isinstance(event, UsageEvent)), Usage())
