"""Checks for event streams and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from reactivex import abc

from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.run.handle import Run


async def run_ready_tasks(turns: int = 10) -> None:
    """Let all ready tasks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], object]) -> None:
    """Yield to the event loop until a condition holds. The timeout of the test limits the wait."""
    while not condition():  # noqa: ASYNC110 (no event tells it)
        await asyncio.sleep(0)


def other_tasks() -> set[asyncio.Task[Any]]:
    """Return all tasks except the current one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def assert_no_tasks(*, turns: int = 20) -> None:
    """Assert that all other tasks have ended."""
    await run_ready_tasks(turns)
    assert other_tasks() == set()


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def positions(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    return [(event.attempt, event.seq, event.sub) for event in events]


def durable_events(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.durable]


def final_events(events: Sequence[Event]) -> list[StatusUpdateEvent]:
    return [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]


def assert_numbered(events: Sequence[Event]) -> None:
    """Assert that an attempt has correct sequence numbers."""
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
    """Check the envelope of every event: rules L1, L3, L4 and L5."""
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
    """Assert that the last event is the only final event and has this state and reason."""
    assert len(final_events(events)) == 1, kinds(events)
    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert (final.state, final.reason) == (state, reason)
    return final


class Recorder(abc.ObserverBase[Any]):
    """Observer with recorded notifications."""

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


async def collect_events(run: Run[Any]) -> list[Event]:
    """Collect the events of a run."""
    return [event async for event in run]
