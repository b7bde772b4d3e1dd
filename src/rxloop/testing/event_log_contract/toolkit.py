"""Decorators, events and assertions for contract checks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, Protocol

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import CustomEvent, Event, State, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message

SECONDS = 10
"""Timeout in seconds for receiving appended events."""


class MakeLog(Protocol):
    """Factory for new, empty logs."""

    def __call__(self, *, keep_deltas: bool = False) -> EventLog:
        """Create a log. `keep_deltas` can be ignored if transient events are not supported."""
        ...


Check = Callable[[MakeLog], Awaitable[None]]
"""Contract check for a single log."""

MakeTwo = Callable[[], tuple[EventLog, EventLog]]
"""Factory for two log objects that share a new, empty store, like two processes."""

SharedCheck = Callable[[MakeTwo], Awaitable[None]]
"""Contract check for two log objects with shared storage."""


class Follower:
    """Background reader of a run.

    Args:
        log: Event log.
        task_id: Run id.
        **options: Options for `EventLog.follow`.
    """

    def __init__(self, log: EventLog, task_id: str = "run", **options: Any) -> None:
        self.received: list[int] = []
        """Received seq numbers."""
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._read(log.follow(task_id, **options)))
        """Background task that finishes with the stream."""
        self.task.add_done_callback(_retrieve_error)

    async def _read(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.received.append(event.seq)
            self._more.set()

    async def wait_for_events(self, *expected: int) -> None:
        """Wait until exactly these events have been received.

        Raises:
            AssertionError: Other events were received after ten seconds.
        """
        try:
            async with asyncio.timeout(SECONDS):
                while self.received != [*expected]:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"expected the events {[*expected]}, received {self.received}") from None


def _retrieve_error(task: asyncio.Task[None]) -> None:
    """Retrieve a task's exception. Otherwise, asyncio would log it if a check fails before awaiting the task."""
    if not task.cancelled():
        task.exception()


ENDS: tuple[State, ...] = ("completed", "failed", "canceled", "input-required", "auth-required")
"""Final attempt states."""


def task(seq: int = 1, **fields: Any) -> TaskEvent:
    """Create a `task` event."""
    return TaskEvent(seq=seq, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="helper", **fields)


def note(seq: int, **fields: Any) -> Event:
    """Create a durable event without side effects."""
    return CustomEvent(seq=seq, name=f"note {seq}", **fields)


def status(seq: int, state: State, **fields: Any) -> Event:
    """Create a status update."""
    return StatusUpdateEvent(seq=seq, state=state, **fields)


def end(seq: int, state: State = "completed", **fields: Any) -> Event:
    """Create a final status update."""
    return status(seq, state, final=True, **fields)


def start_events(task_id: str = "run", **fields: Any) -> list[Event]:
    """Create the initial events for a run."""
    return [task(task_id=task_id, **fields), status(2, "working", task_id=task_id, **fields)]


def timed_start_events(timestamp: int) -> list[Event]:
    """Create initial events with constant bytes."""
    return [task(timestamp=timestamp), status(2, "working", timestamp=timestamp)]


def ids(records: Iterable[RunRecord]) -> list[str]:
    """Return the run ids."""
    return [record.task_id for record in records]


@asynccontextmanager
async def new_log(make_log: MakeLog, *, keep_deltas: bool = False) -> AsyncGenerator[EventLog]:
    """Create a log and close it on exit."""
    log = make_log(keep_deltas=True) if keep_deltas else make_log()
    try:
        yield log
    finally:
        await log.aclose()


def check(
    checks: list[Check], *, keep_deltas: bool = False, stores_folds: bool = False
) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Register a contract check for a single log. The log is closed afterwards.

    Args:
        checks: List of checks to extend.
        keep_deltas: Skip logs without support for transient events.
        stores_folds: Skip logs without support for folds.
    """

    def add(function: Callable[[Any], Awaitable[None]]) -> None:
        @wraps(function)
        async def run(make_log: MakeLog) -> None:
            async with new_log(make_log, keep_deltas=keep_deltas) as log:
                if (log.keeps_deltas or not keep_deltas) and (log.stores_folds or not stores_folds):
                    await function(log)

        checks.append(run)

    return add


def shared_check(checks: list[SharedCheck]) -> Callable[[Callable[[Any, Any], Awaitable[None]]], None]:
    """Register a contract check for two log objects with shared storage. See `check`."""

    def add(function: Callable[[Any, Any], Awaitable[None]]) -> None:
        @wraps(function)
        async def run(make_two: MakeTwo) -> None:
            logs = make_two()
            try:
                await function(*logs)
            finally:
                for log in logs:
                    await log.aclose()

        checks.append(run)

    return add


async def wait_for(*followers: Follower) -> None:
    """Wait until all followers have finished."""
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(follower.task for follower in followers))


def assert_equal(actual: object, expected: object) -> None:
    """Raise `AssertionError` if two values are different."""
    # `python -O` would remove an `assert` statement.
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, got {actual!r}")


@contextmanager
def raises(kind: type[Exception], *patterns: str) -> Generator[None]:
    """Expect an exception with a message that matches all patterns."""
    try:
        yield
    except kind as error:
        missing = [pattern for pattern in patterns if not re.search(pattern, str(error))]
        if missing:
            raise AssertionError(f"{kind.__name__} must contain {', '.join(missing)}, got {error}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
