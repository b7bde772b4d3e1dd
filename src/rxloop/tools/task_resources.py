"""Async context managers that are entered and left in their own tasks."""

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

_MAX_KEYS = 100
"""Number of keys in an event loop above which finished resources are removed."""

Factory = Callable[[], AbstractAsyncContextManager[T]]


class TaskResources(Generic[T]):
    """Async context managers per key and event loop, each running in a separate task.

    Context managers with an anyio task group must be exited by the task that entered them. Run tasks are too
    short-lived for this purpose.

    Resources are entered on first use, and concurrent requests share the same entry. Broken resources (ended task or
    explicit `drop`) are exited and entered again on the next request. After a failed entry, retries are delayed by the
    duration of the failed attempt. This limits the time spent on failing entries to about half.
    """

    def __init__(self) -> None:
        self._resources: dict[AbstractEventLoop, dict[Hashable, _Resource[T]]] = {}
        # Garbage collection releases abandoned resources without affecting other instances.
        finalize(self, _leave_all, self._resources).atexit = False

    async def get(self, key: Hashable, make: Factory[T], *, name: str, seconds: float | None = None) -> T:
        """Return the value of the context manager for a key. Enters it if necessary.

        Args:
            key: Key of the resource.
            make: Creates the context manager. Called before each entry.
            name: Name of the resource in errors, and of its task.
            seconds: Time limit for entering, used if this call starts the entry. None for no limit.

        Raises:
            RxloopError: If the resource cannot be entered.
        """
        current_loop = asyncio.get_running_loop()
        if current_loop not in self._resources:
            for loop in [loop for loop in self._resources if loop.is_closed()]:
                del self._resources[loop]
        resources = self._resources.setdefault(current_loop, {})
        resource = resources.get(key)
        if resource is None or resource.is_over:
            if len(resources) >= _MAX_KEYS:
                for other in [other for other, each in resources.items() if each.is_over and each.task.done()]:
                    del resources[other]
            resource = resources[key] = _Resource(make, name, seconds, resource.task if resource is not None else None)
        failure = await asyncio.shield(resource.entered)
        if failure is not None:
            raise RxloopError(f"{name} is not available: {failure}") from failure
        return resource.value

    def get_now(self, key: Hashable) -> T | None:
        """Return the value for a key, or None if the resource is not entered."""
        resources = self._resources.get(asyncio.get_running_loop())
        resource = None if resources is None else resources.get(key)
        return resource.value if resource is not None and resource.is_usable else None

    def get_all_now(self) -> dict[Hashable, T]:
        """Return the values of all entered resources by key."""
        resources = self._resources.get(asyncio.get_running_loop(), {})
        return {key: resource.value for key, resource in resources.items() if resource.is_usable}

    def drop(self, key: Hashable, value: T) -> None:
        """Exit a broken resource, unless it has already been replaced."""
        resource = self._resources.get(asyncio.get_running_loop(), {}).get(key)
        if resource is not None and resource.is_usable and resource.value is value:
            resource.leave()

    async def aclose(self, *, other_loops: bool = True) -> None:
        """Leave all resources. May be called from any task and more than once.

        Args:
            other_loops: True to also request the end of the resources of other event loops.

        Raises:
            Exception: If leaving a resource failed.
        """
        current_loop = asyncio.get_running_loop()
        resources = list(self._resources.pop(current_loop, {}).values())
        for resource in resources:
            resource.leave()
        if other_loops:
            _leave_all(self._resources)
        if resources:
            # In a task, because a cancelled scope would interrupt the wait with a time limit.
            await wait_all(
                [
                    current_loop.create_task(
                        _wait_ended([resource.task for resource in resources]), name="rxloop-leaving"
                    )
                ]
            )
            await close_all([resource.report for resource in resources])


def _leave_all(resources: dict[AbstractEventLoop, dict[Hashable, _Resource[Any]]]) -> None:
    """Request the exit of all resources from any thread."""
    while resources:
        loop, loop_resources = resources.popitem()
        for resource in loop_resources.values():
            with suppress(RuntimeError):  # The loop is closed, so its tasks are gone.
                loop.call_soon_threadsafe(resource.leave)


_RUNNING: set[asyncio.Task[None]] = set()
"""Running tasks. An event loop has only weak references to its tasks."""


class _Resource(Generic[T]):
    """Single context manager entry, valid until exit."""

    value: T

    def __init__(self, make: Factory[T], name: str, seconds: float | None, previous: asyncio.Task[None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._started_at = self._loop.time()
        self._retry_at = self._started_at
        """Earliest retry time after a failed entry."""
        self._leaving = asyncio.Event()
        self._failure: Exception | None = None
        """Exception raised while leaving."""
        self.entered: asyncio.Future[Exception | None] = self._loop.create_future()
        # Use an empty context, because inherited variables may contain credentials or test-specific values. The
        # detection of stuck runs also ignores tasks with an empty context.
        context = Context()
        self.task = self._loop.create_task(self._run(make, previous), name=f"rxloop-{name}", context=context)
        _RUNNING.add(self.task)
        self.task.add_done_callback(_RUNNING.discard, context=context)
        self.is_usable = False
        """True if the resource is entered and not being left."""
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire, seconds)

    @property
    def is_over(self) -> bool:
        """True if a new entry must replace this one."""
        if not self.entered.done() or self.is_usable:
            return False
        return self.entered.result() is None or self._loop.time() >= self._retry_at

    def leave(self) -> None:
        """Request resource exit or cancel a pending entry."""
        self.is_usable = False
        self._leaving.set()
        if not self.entered.done():
            self._fail(RxloopError("it was closed"))
            self.task.cancel()

    async def report(self) -> None:
        """Raise the exit exception, if any."""
        if self._failure is not None:
            raise self._failure

    async def _run(self, make: Factory[T], previous: asyncio.Task[None] | None) -> None:
        try:
            if previous is not None:
                await asyncio.wait([previous], timeout=GRACE)
            async with make() as self.value:
                self._succeed()
                await self._leaving.wait()
        except BaseException as error:
            self._handle_error(error)
        else:
            self.is_usable = False
            self._fail(RxloopError("entering it ended without a result"))

    def _handle_error(self, error: BaseException) -> None:
        """Record the exception without raising it, because a `BaseException` could terminate the process."""
        self.is_usable = False
        cancelled = isinstance(error, asyncio.CancelledError)
        while isinstance(error, BaseExceptionGroup):
            # Individual exceptions provide better messages than exception groups.
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        failure = error if isinstance(error, Exception) else to_error(error, self._name)
        if not self.entered.done():
            self._fail(RxloopError("entering it was cancelled") if cancelled else failure)
        elif self._leaving.is_set():
            self._failure = None if cancelled else failure
        elif self.entered.result() is None and not cancelled:
            log.warning("%s failed and will be entered again on the next request: %r", self._name, error)
        if isinstance(error, KeyboardInterrupt):
            leave_to_loop(error)

    def _succeed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.entered.done():
            self.is_usable = True
            self.entered.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.entered.done():
            now = self._loop.time()
            self._retry_at = now + (now - self._started_at)
            self.entered.set_result(failure)

    def _expire(self, seconds: float) -> None:
        self._fail(RxloopError(f"entering it took more than {seconds:g} s"))
        self._leaving.set()
        self.task.cancel()


async def _wait_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all tasks have ended. After the grace period, cancel the remaining tasks and wait once more."""
    _, late = await asyncio.wait(tasks, timeout=GRACE)
    for task in late:
        task.cancel()
    if late:
        _, stuck = await asyncio.wait(late, timeout=GRACE)
        for task in stuck:
            log.warning("Abandoning %s, which does not end although it was cancelled", task.get_name())
