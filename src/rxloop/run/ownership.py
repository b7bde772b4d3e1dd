"""Who owns a run: the share that its handle and its streams hold together."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections.abc import Callable
from typing import cast

from reactivex import abc

from rxloop.errors import RxloopError
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.run.attempt import Core
from rxloop.run.endings import error_code
from rxloop.run.lifecycle import drive
from rxloop.run.spec import Canceled
from rxloop.stream.scope import Gate

NO_LOOP = (
    "a run needs a running event loop of asyncio (trio is not supported): await it inside async code, use "
    "asyncio.run(run.result()), or agent.run_sync()"
)


log = logging.getLogger("rxloop")

_STARTED: weakref.WeakSet[Share] = weakref.WeakSet()
"""The runs of this process that were started, and that somebody holds, so that one can be found by its id."""


def alive(task_id: str) -> Share | None:
    """The run of that id that goes on in this process, whatever agent it was made by."""
    return next((share for share in list(_STARTED) if share.task_id == task_id and share.goes_on), None)


class Share:
    """A share in a run: the handle and its streams hold one together. When the last holder lets go, the run ends."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._driver: asyncio.Task[None] | None = None
        weakref.finalize(self, _abandoned, core).atexit = False

    @property
    def task_id(self) -> str:
        """The id of the run."""
        return self._core.task_id

    @property
    def goes_on(self) -> bool:
        """Whether the run is under way, in an event loop that turns."""
        loop = self._core.loop
        return self._driver is not None and not self._driver.done() and loop is not None and loop.is_running()

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
            _STARTED.add(self)
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

    async def cancelled(self, reason: str) -> None:
        """Cancel the run, in whatever event loop it is, and wait for its end."""
        loop = self._core.loop
        if loop is None or loop is asyncio.get_running_loop():
            await self.aclose(reason)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.aclose(reason), loop))

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
        text = (
            f"the run {core.task_id} of {core.agent_name!r} was never started: await it, iterate it or subscribe to it"
        )
        if core.made_at is not None:
            warnings.warn_explicit(text, RuntimeWarning, *core.made_at)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    elif not core.told and (failure := _failure(core)) is not None:
        log.warning(
            "the run %s of %r failed, and nobody asked how it ended: %s. Await it, or read run.text(), which raises",
            core.task_id,
            core.agent_name,
            failure,
        )
    elif core.loop is not None and not core.loop.is_closed() and not core.ended:
        core.loop.call_soon_threadsafe(core.finish, Canceled("nobody holds the run any more"))


def _failure(core: Core) -> str | None:
    """The code and message of what the run failed by, or was refused for."""
    if core.refusal is not None:
        return f"[{error_code(core.refusal)}] {core.refusal}"
    final = core.final
    if not isinstance(final, StatusUpdateEvent) or final.state not in ("failed", "working") or final.error is None:
        return None
    return f"[{final.error.code}] {final.error.message}"
