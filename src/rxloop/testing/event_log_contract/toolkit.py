"""Decorators, events and assertions of the checks."""

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
"""How long a follower may take to see what was appended."""


class MakeLog(Protocol):
    """Makes a new, empty log at each call."""

    def __call__(self, *, keep_deltas: bool = False) -> EventLog:
        """Make a log; one that cannot keep transient events leaves `keep_deltas` out of account."""
        ...


Check = Callable[[MakeLog], Awaitable[None]]
"""One check of the contract."""

MakeTwo = Callable[[], tuple[EventLog, EventLog]]
"""Makes two log objects, as two processes would, over one store that is new and empty at each call."""

SharedCheck = Callable[[MakeTwo], Awaitable[None]]
"""One check of the contract between two log objects."""


class Follower:
    """Reads a run in a task of its own; for tests of a log.

    Args:
        log: The log.
        task_id: The run.
        **options: Those of `EventLog.follow`.
    """

    def __init__(self, log: EventLog, task_id: str = "run", **options: Any) -> None:
        self.seen: list[int] = []
        """The `seq` of each event so far."""
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._read(log.follow(task_id, **options)))
        """Ends when following does."""
        self.task.add_done_callback(_retrieve)

    async def _read(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.seen.append(event.seq)
            self._more.set()

    async def sees(self, *expected: int) -> None:
        """Wait until it has seen these events.

        Raises:
            AssertionError: It has seen others after ten seconds.
        """
        try:
            async with asyncio.timeout(SECONDS):
                while self.seen != [*expected]:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"the follower has seen {self.seen}, not {[*expected]}") from None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task, which asyncio reports otherwise if a check fails before it awaits the task."""
    if not task.cancelled():
        task.exception()


ENDS: tuple[State, ...] = ("completed", "failed", "canceled", "input-required", "auth-required")
"""The states in which an attempt may end."""


def task(seq: int = 1, **fields: Any) -> TaskEvent:
    """The first event of a run."""
    return TaskEvent(seq=seq, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="helper", **fields)


def note(seq: int, **fields: Any) -> Event:
    """A durable event that changes nothing."""
    return CustomEvent(seq=seq, name=f"note {seq}", **fields)


def status(seq: int, state: State, **fields: Any) -> Event:
    """A change of the state of a run."""
    return StatusUpdateEvent(seq=seq, state=state, **fields)


def end(seq: int, state: State = "completed", **fields: Any) -> Event:
    """The final event of an attempt."""
    return status(seq, state, final=True, **fields)


def begun(task_id: str = "run", **fields: Any) -> list[Event]:
    """The first two events of a run."""
    return [task(task_id=task_id, **fields), status(2, "working", task_id=task_id, **fields)]


def begun_at(timestamp: int) -> list[Event]:
    """The first two events of a run, the same bytes each time."""
    return [task(timestamp=timestamp), status(2, "working", timestamp=timestamp)]


def ids(records: Iterable[RunRecord]) -> list[str]:
    """The ids of runs."""
    return [record.task_id for record in records]


@asynccontextmanager
async def new_log(make_log: MakeLog, *, keep_deltas: bool = False) -> AsyncGenerator[EventLog]:
    """A new log, which is closed at the end of the block."""
    log = make_log(keep_deltas=True) if keep_deltas else make_log()
    try:
        yield log
    finally:
        await log.aclose()


def check(
    checks: list[Check], *, keep_deltas: bool = False, stores_folds: bool = False
) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Make a check of what one new log must do, and close the log after it.

    Args:
        checks: The list that it is added to.
        keep_deltas: The check is for logs that keep transient events; other logs skip it.
        stores_folds: The check is for logs that store folds; other logs skip it.
    """

    def add(function: Callable[[Any], Awaitable[None]]) -> None:
        @wraps(function)
        async def run(make_log: MakeLog) -> None:
            async with new_log(make_log, keep_deltas=keep_deltas) as log:
                if (log.keeps_deltas or not keep_deltas) and (log.stores_folds or not stores_folds):
                    await function(log)

        checks.append(run)

    return add


def shared(checks: list[SharedCheck]) -> Callable[[Callable[[Any, Any], Awaitable[None]]], None]:
    """Make a check of what two log objects over one store must do, like `check`."""

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
    """Wait until following has ended."""
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(follower.task for follower in followers))


def equal(found: object, expected: object) -> None:
    """Check that something is what it should be."""
    # Not `assert`, which `python -O` leaves out.
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


@contextmanager
def raises(kind: type[Exception], *patterns: str) -> Generator[None]:
    """Expect an error whose message has all of these patterns."""
    try:
        yield
    except kind as error:
        missing = [pattern for pattern in patterns if not re.search(pattern, str(error))]
        if missing:
            raise AssertionError(f"{kind.__name__} does not name {', '.join(missing)}: {error}") from error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
