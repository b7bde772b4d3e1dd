"""Where an attempt stands, and what brings it to its end: the first cause decides it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from rxloop.errors import RxloopError
from rxloop.operators.loop.checks import make_thread_error
from rxloop.pipeline.requests import Operator
from rxloop.state.run_state import LimitHit
from rxloop.stream.rx import RunScheduler
from rxloop.stream.scope import TimeLimit, TimeScope
from rxloop.stream.sources import TaskCancelled
from rxloop.support.foreign_errors import leave_to_loop, to_error

log = logging.getLogger("rxloop")

T = TypeVar("T")


class Phase(Enum):
    """Phase of an attempt. It only goes forward. `lifecycle`, `attempt_end` and `Life.open` move it."""

    NEW = "new"
    """Nobody has started the run."""
    LOADING = "loading"
    """It waits for its turn in the conversation, and reads what the log has."""
    ANNOUNCING = "announcing"
    """It publishes its first events, which tell where it begins."""
    OPEN = "open"
    """It has begun: whatever comes is published, but for another beginning and an end."""
    CLOSED = "closed"
    """Its final event is recorded: nothing more is taken."""
    OVER = "over"
    """Its final event is published, and its stream complete."""
    REFUSED = "refused"
    """It never began: its stream ended with the error."""


class Canceled(NamedTuple):
    """A run was cancelled."""

    reason: str
    mail: int | None = None
    """The number of the letter that asked for it."""
    code: str = "canceled"
    """The reason and the error code in the final event."""


class Released(NamedTuple):
    """A run was given up, for whoever takes it up next."""

    grace: float = 0
    """The seconds that the calls of tools that are not idempotent may still take."""


CLOSING = Canceled("the event loop is closing")
"""Nobody but a closing event loop cancels the task of a run; the run still ends in the proper way."""

CUT_OFF = Canceled("the run that it is nested in came to its end")
"""The end of a nested run that has none of its own."""

End = Exception | Canceled | Released | None
"""What brings an attempt to its end: an error or a limit, a cancel, a release, or that there is nothing more to do."""


class _Undecided(Enum):
    UNDECIDED = "undecided"


_UNDECIDED: Final = _Undecided.UNDECIDED
"""What stands in the place of an end that nothing has decided yet."""


class Life:
    """The phase and the end of one attempt, and the thread that may touch either."""

    def __init__(self, task_id: str, operator: Operator) -> None:
        """Begin in the phase NEW.

        Args:
            task_id: The run.
            operator: The loop of the run, which errors name.
        """
        self.phase = Phase.NEW
        self.thread = threading.get_ident()
        """The thread of the event loop; until there is one, that in which the run was made."""
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.scheduler: RunScheduler | None = None
        self._end: End | _Undecided = _UNDECIDED
        self._task_id = task_id
        self._operator = operator
        self._on_end: Callable[[], object] | None = None
        """Called when the end is decided, by whoever waits for it."""
        self.time_scope = TimeScope(TimeScope.current())
        """The time limits of the run, which stop while a person is asked."""
        self._started = 0.0
        self._limit: TimeLimit | None = None
        self._on_open: asyncio.Future[None] | None = None

    @property
    def ending(self) -> bool:
        """Whether the end is decided, so that the attempt has to come to it."""
        return self._end is not _UNDECIDED

    @property
    def end(self) -> End:
        """What decided the end; None, too, while nothing has."""
        return None if self._end is _UNDECIDED else self._end

    @property
    def used(self) -> bool:
        """Whether anybody has started, or cancelled, the run."""
        return self.phase is not Phase.NEW or self.ending

    @property
    def waits(self) -> bool:
        """Whether it is not known yet if the run is accepted."""
        return self.phase in (Phase.NEW, Phase.LOADING, Phase.ANNOUNCING)

    def open(self) -> None:
        """The run has begun: from now on, whatever comes is published."""
        self.phase = Phase.OPEN
        if self._on_open is not None:
            self._on_open.set_result(None)

    async def until_open(self, driver: asyncio.Task[None]) -> None:
        """Wait until the run has begun, or its task is over, because it was refused or had nothing to do."""
        if self.waits:
            if self._on_open is None:
                self._on_open = asyncio.get_running_loop().create_future()
            await asyncio.wait([driver, self._on_open], return_when=asyncio.FIRST_COMPLETED)

    def bind(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Tie the attempt to the event loop that it runs in."""
        self.event_loop = event_loop
        self._started = event_loop.time()
        self.scheduler = RunScheduler(event_loop, detached=True)
        self.thread = self.scheduler.thread

    def limit(self, seconds: float | None, *, anew: bool = False) -> None:
        """End the attempt this many seconds after it was started; None for no limit. It replaces the one before.

        The time in which a person is asked does not count.

        Args:
            seconds: The limit.
            anew: Count from now on.
        """
        if anew and self.event_loop is not None:
            self._started = self.event_loop.time()
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if seconds is not None and self.event_loop is not None:
            late = LimitHit("timeout", f"the run took longer than {seconds} s (limits.seconds)")
            rest = self._started + seconds - self.event_loop.time()
            self._limit = self.time_scope.start_limit(rest, lambda: self.finish(late))

    def finish(self, end: End) -> None:
        """Decide the end; only the first call does."""
        if threading.get_ident() != self.thread and self.event_loop is not None:
            self.finish_from_thread(end if isinstance(end, Exception) else None)
        elif not self.ending:
            self._end = Canceled(str(end)) if isinstance(end, TaskCancelled) else end
            if self._on_end is not None:
                self._on_end()

    def revise(self, end: End) -> None:
        """Put another end in the place of the decided one, which turned out not to be true."""
        self._end = end

    def completed(self) -> None:
        """Decide that there is nothing more to do."""
        self.finish(None)

    def fail(self, error: Exception) -> None:
        """Decide for an error that could not go through the pipeline."""
        if self.ending:
            log.error("something failed after the end of the run %s", self._task_id, exc_info=error)
        else:
            self.finish(error)

    def cancel(self, reason: str | None = None) -> None:
        """Decide to cancel; from any thread."""
        self.in_loop(self.finish, Canceled(reason or "cancelled"))

    def finish_from_thread(self, cause: Exception | None = None) -> None:
        """Decide for the error that the pipeline delivers from a thread in which nothing of a run may be touched."""
        self.in_loop(self.finish, make_thread_error(self._operator, cause))

    def in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the event loop."""
        if self.event_loop is None or threading.get_ident() == self.thread:
            function(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed, or is closed this very moment
                self.event_loop.call_soon_threadsafe(self._guarded, function, *arguments)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self.fail(to_error(error))
            leave_to_loop(error)

    async def until_end(self) -> None:
        """Wait until the end is decided; for one waiter."""
        if self.ending:
            return
        # No `asyncio.Event`, which takes ten times the memory.
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_end = lambda: None if decided.done() else decided.set_result(None)
        try:
            await decided
        except asyncio.CancelledError:
            self.finish(CLOSING)

    async def insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Carry out a step that an event loop which is closing must not cut off, though it cancels it."""
        while True:
            try:
                return await step()
            except asyncio.CancelledError:
                self.finish(CLOSING)

    async def prepare(self, work: Coroutine[Any, Any, T], grace: float = 0) -> T | None:
        """Do some work before the first request; None if the end is decided before it is done, which cuts it short.

        Args:
            work: Awaited, in a task of its own.
            grace: The seconds that the work may still take when the end is decided.
        """
        if self.ending and not grace:
            work.close()
            return None
        loop = asyncio.get_running_loop()
        preparing = loop.create_task(work, name=f"rxloop-preparation-{self._task_id}")
        timers: list[asyncio.TimerHandle] = []

        def cut_short() -> None:
            if grace:
                timers.append(loop.call_later(grace, preparing.cancel))
            else:
                preparing.cancel()

        self._on_end = cut_short
        if self.ending:
            cut_short()
        try:
            return await preparing
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.finish(CLOSING)
            elif not self.ending:
                raise RxloopError("something that the preparation of the run waited for was cancelled") from None
            return None
        finally:
            self._on_end = None
            for timer in timers:
                timer.cancel()
