"""Who owns a run: the share that its handle and its streams hold together."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable
from typing import cast

from reactivex import abc

from rxloop.core import Core
from rxloop.drive import drive
from rxloop.errors import RxloopError
from rxloop.spec import Canceled
from rxloop.stream.scope import Gate

NO_LOOP = (
    "a run needs a running event loop: await it inside async code, use asyncio.run(run.result()), or agent.run_sync()"
)


class Share:
    """A share in a run: the handle and its streams hold one together. When the last holder lets go, the run ends."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._driver: asyncio.Task[None] | None = None
        weakref.finalize(self, _abandoned, core).atexit = False

    @property
    def gate(self) -> Gate:
        """Holds the sockets of the run back."""
        return self._core.scope.gate

    def scheduler(self) -> abc.SchedulerBase:
        """The scheduler of the run; starts the run."""
        self.start()
        return cast("abc.SchedulerBase", self._core.scheduler)

    def hold(self) -> Callable[[], None]:
        """Keep the run going until the function that is returned is called."""
        # Among the observers of the hub, and so reachable from the tasks of the run, for as long as it lasts.
        token = (object(), self)
        self._core.holders.add(token)
        return lambda: self._core.holders.discard(token)

    def start(self) -> asyncio.Task[None]:
        """Start the run, once."""
        if self._driver is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise RxloopError(NO_LOOP) from None
            self._core.bind(loop)
            self._core.used = True
            name = f"rxloop-run-{self._core.task_id}"
            self._driver = loop.create_task(drive(self._core), name=name)
            # The outcome is told by the stream and to those who await; nobody has to fetch it from the task.
            self._driver.add_done_callback(_fetch)
        elif self._core.loop is not asyncio.get_running_loop():
            raise RxloopError(
                f"the run {self._core.task_id} belongs to another event loop; start a new run in this one"
            )
        return self._driver

    @property
    def driver(self) -> asyncio.Task[None] | None:
        """The task that carries the run out, once it is started."""
        return self._driver

    def cancel(self, reason: str | None) -> None:
        """Begin to cancel the run."""
        self._core.used = True
        self._core.cancel(reason)

    async def aclose(self, reason: str) -> None:
        """Cancel the run, and wait for its end however often the waiting task is cancelled itself."""
        self.cancel(reason)
        # A tool that closes its own run cannot wait for an end that waits for the tool.
        if self._driver is None or self._core.scope.surrounds():
            return
        # Not before it is needed: importing rxloop is quicker without.
        from anyio import CancelScope

        cancelled: asyncio.CancelledError | None = None
        with CancelScope(shield=True):
            while not self._driver.done():
                try:
                    await asyncio.wait([self._driver])
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled


def _fetch(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _abandoned(core: Core) -> None:
    if not core.used:
        warnings.warn(
            f"the run {core.task_id} of {core.agent_name!r} was never started: await it, iterate it or subscribe to it",
            RuntimeWarning,
            stacklevel=2,
        )
    elif core.loop is not None and not core.loop.is_closed() and not core.ended:
        core.loop.call_soon_threadsafe(core.finish, Canceled("nobody holds the run any more"))
