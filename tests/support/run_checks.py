"""What the tests of the stream and of runs ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from reactivex import abc

from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.run.handle import Run


async def settled(turns: int = 10) -> None:
    """Let everything run that is ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait, turn by turn, until something is so; the test's own timeout is the end of patience."""
    while not condition():  # noqa: ASYNC110 (no event tells it)
        await asyncio.sleep(0)


def other_tasks() -> set[asyncio.Task[Any]]:
    """The tasks beside the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def nothing_left(*, turns: int = 20) -> None:
    """No task is left."""
    await settled(turns)
    assert other_tasks() == set()


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def places(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    return [(event.attempt, event.seq, event.sub) for event in events]


def durable(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.durable]


def finals(events: Sequence[Event]) -> list[StatusUpdateEvent]:
    return [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]


def assert_numbered(events: Sequence[Event]) -> None:
    """One attempt, from its first event, keeps the rules of numbering."""
    seq = sub = 0
    for event in events:
        if event.durable:
            seq, sub = seq + 1, 0
        else:
            sub += 1
        assert (event.seq, event.sub) == (seq, sub), event
        assert event.version == 1
        assert event.kind
        assert event.context_id
        assert event.task_id
        assert event.attempt == 1
        assert event.timestamp


def check_envelopes(events: list[Event]) -> None:
    """What holds of the events of every run: L1, L3, L4, L5."""
    assert [event.seq for event in events if event.durable] == list(range(1, sum(e.durable for e in events) + 1))
    assert [(event.seq, event.sub) for event in events] == sorted({(event.seq, event.sub) for event in events})
    assert all((event.sub > 0) == (not event.durable) for event in events)
    first = events[0]
    for event in events:
        assert (event.version, event.attempt) == (1, 1)
        assert (event.context_id, event.task_id) == (first.context_id, first.task_id)
        assert event.timestamp > 1_600_000_000_000
    assert isinstance(first, TaskEvent)
    assert isinstance(events[1], StatusUpdateEvent)
    assert events[1].state == "working"
    assert [event for event in events if isinstance(event, StatusUpdateEvent) and event.final] == [events[-1]]


def assert_ended(events: Sequence[Event], state: str, reason: str | None = None) -> StatusUpdateEvent:
    """There is one final event, it is the last, and it says this."""
    assert len(finals(events)) == 1, kinds(events)
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.reason) == (state, reason)
    return final


class Recorder(abc.ObserverBase[Any]):
    """A subscriber that keeps everything."""

    def __init__(self, source: Any = None, scheduler: Any = None) -> None:
        self.events: list[Any] = []
        self.error: Exception | None = None
        self.completed = False
        self.subscription: Any = None
        if source is not None:
            self.subscription = source.subscribe(self, scheduler=scheduler)

    def on_next(self, value: Any) -> None:
        self.events.append(value)

    def on_error(self, error: Exception) -> None:
        self.error = error

    def on_completed(self) -> None:
        self.completed = True


async def events_of(run: Run[Any]) -> list[Event]:
    """All events of a run."""
    return [event async for event in run]
