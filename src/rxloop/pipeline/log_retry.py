"""Retried calls of a log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rxloop.errors import EventLogError, LogUnreachable, RxloopError

if TYPE_CHECKING:
    from rxloop.protocol.events import Event

log = logging.getLogger("rxloop")

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a log that fails is asked again, before it counts as gone."""

PAUSES = (0.05, 2.0)
"""The seconds between two tries: of the first pause, doubled each time, and at most."""

ANSWERS_IN = 10.0
"""Seconds in which a log has to say what became of a batch; one that hangs is asked again, and gone in the end."""

_WITHIN: ContextVar[float | None] = ContextVar("rxloop_log_within", default=None)

_MISTAKES = (AssertionError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What is wrong in the code of a log, or with an event; another try would not change it."""


@contextmanager
def within(seconds: float | None) -> Generator[None]:
    """Give a log so many seconds for each thing that it is asked in this context, and in the tasks that begin in it.

    For a client that waits to be told. None is for what goes on for longer, such as a run, and has `PATIENCE`.
    """
    token = _WITHIN.set(seconds)
    try:
        yield
    finally:
        _WITHIN.reset(token)


async def patiently(ask: Callable[[], Awaitable[T]], trouble: str, *, answers_in: float | None = None) -> T:
    """Ask a log until it answers, however often within `PATIENCE`, or in the time of `within`.

    Args:
        ask: Asks the log once.
        trouble: What it does not do, for the warning that it is asked again.
        answers_in: The seconds that one answer may take; None is for as long as there is to read.

    Raises:
        LogUnreachable: The time of `within` is over.
    """
    deadline = asyncio.timeout(_WITHIN.get())
    try:
        async with deadline:
            return await _until_it_answers(ask, trouble, answers_in)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise LogUnreachable(f"no answer has come in {_WITHIN.get():g} s") from error


async def _until_it_answers(ask: Callable[[], Awaitable[T]], trouble: str, answers_in: float | None) -> T:
    loop = asyncio.get_running_loop()
    pause, longest = PAUSES
    over, warned = loop.time() + PATIENCE, False
    while True:
        try:
            return await _once(ask, answers_in)
        except BaseException as error:
            if is_cancelled(error) or not may_pass(error):
                raise
            if not warned:
                warned = True
                log.warning("%s; trying again: %s", trouble, error)
            elif loop.time() + pause > over:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _once(ask: Callable[[], Awaitable[T]], answers_in: float | None) -> T:
    deadline = asyncio.timeout(answers_in)
    try:
        async with deadline:
            return await ask()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise EventLogError(f"the log has not answered for {answers_in:g} s") from error


def may_pass(error: BaseException) -> bool:
    """Tell whether the log may answer the same question in a moment."""
    if isinstance(error, EventLogError):
        return error.retryable
    # A log raises that where something of its own was cancelled, such as a connection.
    return isinstance(error, asyncio.CancelledError) or (
        isinstance(error, Exception) and not isinstance(error, _MISTAKES)
    )


def is_cancelled(error: BaseException) -> bool:
    """Tell whether it is the task that is cancelled, and not something in the log."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


P = ParamSpec("P")


async def read_log(read: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Read from a log; one that fails for a moment is asked again, as for what is appended.

    Raises:
        LogUnreachable: The log failed for longer than `PATIENCE`.
        EventLogError: It failed by what another try would not change.
    """
    try:
        return await patiently(lambda: read(*args, **options), "the event log cannot be read")
    except Exception as error:
        if may_pass(error):
            raise LogUnreachable(f"the event log could not be read: {error}") from error
        if isinstance(error, RxloopError):
            raise
        raise EventLogError(f"the event log could not be read: {error}") from error


def check_whole(task_id: str, events: Sequence[Event], until: int) -> None:
    """Refuse to go on after an event that a log could not read and has left out.

    Args:
        task_id: The run.
        events: What the log gives of it.
        until: The last event that is to be there.

    Raises:
        EventLogError: One up to there is missing.
    """
    for seq in range(1, until + 1):
        if seq > len(events) or events[seq - 1].seq != seq:
            before = f"; agent.fork({task_id!r}, at={seq - 1}) goes on before it" if seq > 1 else ""
            raise EventLogError(
                f"the event {seq} of the run {task_id} cannot be read: a run that goes on after it may repeat what was "
                f"done{before}",
                retryable=False,
            )
