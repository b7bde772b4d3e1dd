"""Agents that are nested in each other, and what is to be so on the stream of their run, whatever they do."""

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


def tokens(text: str, number: int = 10) -> Any:
    """A turn that takes so many tokens."""
    return turn(text, usage=Usage(input_tokens=number, output_tokens=1))


def researcher(*turns: Any, **fields: Any) -> Agent:
    """The agent that is nested: it searches once, unless it is told otherwise."""
    script = turns or (call("search", question="Oslo"), tokens("A capital."))
    options: dict[str, Any] = {"name": "researcher", "tools": [search], "thoughts": False, **fields}
    return Agent(ScriptedModel(*script), **options)


def editor(*tools: Any, turns: Sequence[Any] = (), **fields: Any) -> Agent:
    """The agent that calls it: once, unless it is told otherwise."""
    script = turns or (call("research", prompt="Oslo?"), tokens("A page."))
    options: dict[str, Any] = {"name": "editor", "thoughts": False, "log": MemoryEventLog(), **fields}
    return Agent(ScriptedModel(*script), tools=tools, **options)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a clock of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with virtual_time() as time:
            time.run(test(**fixtures))

    return run


async def checked(run: AsyncIterable[Event]) -> list[Event]:
    """Every event of a run, which keeps the grammar, and in which every nested run ends before the one around it."""
    events = await collect(run)
    check(events)
    return events


def check(events: Sequence[Event]) -> None:
    """Check the events of one attempt."""
    check_attempts(events)
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    begun = {event.task_id for event in events if event.agent_path or event.parent_task_id is None}
    assert sorted(event.task_id for event in ends) == sorted(begun), "every run has one final event"
    places = {event.task_id: place for place, event in enumerate(ends)}
    for event in ends:
        if event.parent_task_id is not None:
            assert places[event.task_id] < places[event.parent_task_id]
    assert {event.root_task_id for event in events} == {ends[-1].task_id}


def check_attempts(events: Sequence[Event]) -> None:
    """Check the grammar of all attempts of a run."""
    from_iterable(events).pipe(op.grammar()).subscribe(on_error=_raise)


def _raise(error: Exception) -> None:
    raise error


def of(events: Sequence[Event], *path: str) -> list[Event]:
    """The events of one agent, by its path."""
    return [event for event in events if event.agent_path == path]


def used(events: Sequence[Event]) -> Usage:
    """The sum of the tokens of all model calls."""
    return sum((event.usage for event in events if isinstance(event, UsageEvent)), Usage())
