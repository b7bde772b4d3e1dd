"""Resources that one task enters and leaves."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from typing import Any, Generic, TypeVar, cast
from weakref import finalize

from rxloop.errors import RxloopError
from rxloop.support.foreign_errors import leave_to_loop, to_error
from rxloop.support.tasks import GRACE, close_all, wait_all

T = TypeVar("T")

log = logging.getLogger("rxloop")

_MOST = 100
"""Keys in an event loop, from which on those that are over are forgotten."""

Make = Callable[[], AbstractAsyncContextManager[T]]


class Owned(Generic[T]):
    """Async context managers, one for each key and event loop, each entered and left in a task of its own.

    Many of them, whatever has an anyio task group inside above all, cannot be left by another task than the one that
    entered them. The tasks of a run come and go, so none of them may be that one.

    A resource is entered when it is asked for first, and all who ask meanwhile wait for the same entering. One that
    broke (its task has ended, or `drop` said so) is left, and entered again for the next who asks. One that could not
    be entered is not tried again for as long as that took, so that at most half of the time goes into waiting for it.
    """

    def __init__(self) -> None:
        self._lives: dict[AbstractEventLoop, dict[Hashable, _Life[T]]] = {}
        # Who drops it without closing it loses what it has, and no more than that.
        finalize(self, _leave_all, self._lives).atexit = False

    async def get(self, key: Hashable, make: Make[T], *, name: str, seconds: float | None = None) -> T:
        """Give what the context manager of that key gave when it was entered.

        Args:
            key: What it is kept under.
            make: Makes the context manager, each time that it is to be entered.
            name: What it is called in errors, and its task.
            seconds: How long entering it may take, for who is the first to ask; None for any time.

        Raises:
            RxloopError: It cannot be entered.
        """
        here = asyncio.get_running_loop()
        if here not in self._lives:
            for loop in [loop for loop in self._lives if loop.is_closed()]:
                del self._lives[loop]
        lives = self._lives.setdefault(here, {})
        life = lives.get(key)
        if life is None or life.over:
            if len(lives) >= _MOST:
                for other in [other for other, each in lives.items() if each.over and each.task.done()]:
                    del lives[other]
            life = lives[key] = _Life(make, name, seconds, life.task if life is not None else None)
        failure = await asyncio.shield(life.entered)
        if failure is not None:
            raise RxloopError(f"{name} is not available: {failure}") from failure
        return life.value

    def now(self, key: Hashable) -> T | None:
        """Give the same without waiting; None if it has to be entered first."""
        lives = self._lives.get(asyncio.get_running_loop())
        life = None if lives is None else lives.get(key)
        return life.value if life is not None and life.usable else None

    def all_now(self) -> dict[Hashable, T]:
        """Give all that are entered, by their keys."""
        lives = self._lives.get(asyncio.get_running_loop(), {})
        return {key: life.value for key, life in lives.items() if life.usable}

    def drop(self, key: Hashable, value: T) -> None:
        """Leave what broke; nothing happens if another one has taken its place already."""
        life = self._lives.get(asyncio.get_running_loop(), {}).get(key)
        if life is not None and life.usable and life.value is value:
            life.leave()

    async def aclose(self, *, elsewhere: bool = True) -> None:
        """Leave all of them; may be called from any task, and more than once.

        Args:
            elsewhere: Whether those of other event loops are told to end, too.

        Raises:
            Exception: One of them failed when it was left.
        """
        here = asyncio.get_running_loop()
        lives = list(self._lives.pop(here, {}).values())
        for life in lives:
            life.leave()
        if elsewhere:
            _leave_all(self._lives)
        if lives:
            # In a task, since waiting with a time limit is what a cancelled scope would not let through.
            await wait_all([here.create_task(_ended([life.task for life in lives]), name="rxloop-leaving")])
            await close_all([life.report for life in lives])


def _leave_all(lives: dict[AbstractEventLoop, dict[Hashable, _Life[Any]]]) -> None:
    """Tell all of them to end, from any thread."""
    while lives:
        loop, of_loop = lives.popitem()
        for life in of_loop.values():
            with suppress(RuntimeError):  # that loop is closed, and its tasks are gone
                loop.call_soon_threadsafe(life.leave)


_TASKS: set[asyncio.Task[None]] = set()
"""Those that are under way: an event loop alone does not keep them."""


class _Life(Generic[T]):
    """One time that a context manager is entered, until it is left."""

    value: T

    def __init__(self, make: Make[T], name: str, seconds: float | None, before: asyncio.Task[None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._begun = self._loop.time()
        self._again = self._begun
        """When a failure may be tried again."""
        self._leaving = asyncio.Event()
        self._failure: Exception | None = None
        """What went wrong while it was left."""
        self.entered: asyncio.Future[Exception | None] = self._loop.create_future()
        # Nothing of the run that asks first: its context variables may hold a credential, or be those of a test.
        self.task = self._loop.create_task(self._live(make, before), name=f"rxloop-{name}", context=Context())
        _TASKS.add(self.task)
        self.task.add_done_callback(_TASKS.discard)
        self.usable = False
        """Whether it is entered, and nobody has begun to leave it."""
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._late, seconds)

    @property
    def over(self) -> bool:
        """Whether another one is to take its place."""
        if not self.entered.done() or self.usable:
            return False
        return self.entered.result() is None or self._loop.time() >= self._again

    def leave(self) -> None:
        """Begin to leave it, or give up entering it."""
        self.usable = False
        self._leaving.set()
        if not self.entered.done():
            self._fail(RxloopError("it was closed"))
            self.task.cancel()

    async def report(self) -> None:
        """Raise what went wrong while it was left."""
        if self._failure is not None:
            raise self._failure

    async def _live(self, make: Make[T], before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before], timeout=GRACE)
            async with make() as self.value:
                self._succeed()
                await self._leaving.wait()
        except BaseException as error:
            self._ended(error)
        else:
            self.usable = False
            self._fail(RxloopError("entering it ended without a result"))

    def _ended(self, error: BaseException) -> None:
        """Keep what ended it, a `BaseException` too: raised on, it would reach nobody, or end the process."""
        self.usable = False
        cancelled = isinstance(error, asyncio.CancelledError)
        while isinstance(error, BaseExceptionGroup):
            # What a task group raises: the first failure in it says more than the group.
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        failure = error if isinstance(error, Exception) else to_error(error, self._name)
        if not self.entered.done():
            self._fail(RxloopError("entering it was cancelled") if cancelled else failure)
        elif self._leaving.is_set():
            self._failure = None if cancelled else failure
        elif self.entered.result() is None and not cancelled:
            log.warning("%s broke, and is entered again when it is wanted: %r", self._name, error)
        if isinstance(error, KeyboardInterrupt):
            leave_to_loop(error)

    def _succeed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.entered.done():
            self.usable = True
            self.entered.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.entered.done():
            now = self._loop.time()
            self._again = now + (now - self._begun)
            self.entered.set_result(failure)

    def _late(self, seconds: float) -> None:
        self._fail(RxloopError(f"entering it took more than {seconds:g} s"))
        self._leaving.set()
        self.task.cancel()


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until tasks are over; those that do not come to an end are cancelled, and then left to themselves."""
    _, late = await asyncio.wait(tasks, timeout=GRACE)
    for task in late:
        task.cancel()
    if late:
        _, stuck = await asyncio.wait(late, timeout=GRACE)
        for task in stuck:
            log.warning("%s does not end, though it was cancelled; it is left to itself", task.get_name())
