"""Who holds a run: it goes on as long as its handle, or one of its streams, is held."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from reactivex import Observable, abc

from rxloop.errors import RxloopError
from rxloop.operators.views.filters import after as after_cursor
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.events import WAITING, AnyEvent, Event, PendingInput, StatusUpdateEvent
from rxloop.run.attempt import Attempt
from rxloop.run.ends import error_code
from rxloop.run.life import Canceled, Released
from rxloop.run.lifecycle import start
from rxloop.state.fold import fold_all
from rxloop.stream.back_pressure import Gate
from rxloop.stream.rx import get_running_loop
from rxloop.support.tasks import wait_all

NO_LOOP = (
    "a run needs a running event loop of asyncio (trio is not supported): await it inside async code, use "
    "asyncio.run(run.result()), or agent.run_sync(). In a thread without a loop, such as that of a GUI or of a pool, "
    "subscribe in the thread of the loop: "
    "run.pipe(reactivex.operators.subscribe_on(AsyncIOThreadSafeScheduler(loop)))"
)


log = logging.getLogger("rxloop")


class OwnedRuns:
    """Runs that this process has started and still holds, of one log object or of one agent without a log."""

    def __init__(self) -> None:
        self._holds: weakref.WeakSet[RunHold] = weakref.WeakSet()

    def add(self, hold: RunHold) -> None:
        """Add a run that was started."""
        self._holds.add(hold)

    def find(self, task_id: str) -> RunHold | None:
        """Return the run of that id that is executed in this process, whatever agent has made it."""
        return next((hold for hold in list(self._holds) if hold.task_id == task_id and hold.goes_on), None)


def find_owned(event_log: EventLog, task_id: str) -> RunHold | None:
    """Return the run of that id that is executed in this process with this log object, if there is one."""
    return event_log.local.get(OwnedRuns).find(task_id)


class RunHold:
    """What the handle and the streams of a run hold together. When the last of them lets go, the run ends."""

    def __init__(self, attempt: Attempt, owned: OwnedRuns) -> None:
        """Hold a run that was not started yet.

        Args:
            attempt: Its attempt.
            owned: Gets the run when it is started.
        """
        self._attempt, self._owned = attempt, owned
        self.driver: asyncio.Task[None] | None = None
        """The task that carries the run out, once it is started."""
        weakref.finalize(self, _abandoned, attempt).atexit = False

    @property
    def task_id(self) -> str:
        """The id of the run."""
        return self._attempt.task_id

    @property
    def has_log(self) -> bool:
        """Whether the run can go on elsewhere."""
        return self._attempt.info.log is not None

    @property
    def surrounds(self) -> bool:
        """Whether the caller is one of the tools of the run."""
        return self._attempt.info.scope.contains()

    @property
    def goes_on(self) -> bool:
        """Whether the run is under way, in an event loop that turns."""
        loop = self._attempt.life.event_loop
        return self.driver is not None and not self.driver.done() and loop is not None and loop.is_running()

    @property
    def paused(self) -> bool:
        """Whether the attempt ended because the run waits for an answer."""
        final = self._attempt.final
        return isinstance(final, StatusUpdateEvent) and final.state in WAITING

    @property
    def end(self) -> StatusUpdateEvent | None:
        """The final event of the attempt, if the log has it, and no other attempt is expected to follow."""
        final = self._attempt.final
        if not isinstance(final, StatusUpdateEvent) or final.state not in ("completed", "failed"):
            return None
        return None if final.error is not None and final.error.retryable else final

    @property
    def pending(self) -> list[PendingInput]:
        """The questions of the run, and of its nested runs, that have no answer yet."""
        return list(self._attempt.recorder.state().pending.values())

    @property
    def gate(self) -> Gate:
        """Holds the sockets of the run back."""
        return self._attempt.info.scope.gate

    def events(self, after: str | None = None, *, strict: bool = True) -> Observable[AnyEvent]:
        """Return the events of the run. Events that are not in memory are read from the log.

        Args:
            after: Cursor of the last event to omit. None starts with the first event of this attempt.
            strict: Refuse an invalid cursor. Otherwise it counts as unknown.
        """
        attempt = self._attempt
        # Users match their own kinds by `isinstance`, so a type checker may assume the built-in kinds.
        source = cast("Observable[AnyEvent]", attempt.recorder.hub.events)
        if after is not None:
            return after_cursor(after, strict=strict)(self._add_past(source, 1))
        return self._add_past(source, attempt.first_attempt) if attempt.recorder.hub.trimmed else source

    def _add_past(self, source: Observable[AnyEvent], first_attempt: int) -> Observable[AnyEvent]:
        attempt, log = self._attempt, self._attempt.info.log
        if log is None:
            return source
        # Imported here, because `import rxloop` is faster without this module.
        from rxloop.stream.readers import prepend_past

        async def read(before: int) -> Sequence[Event]:
            await attempt.durable()
            events = await log.read(attempt.task_id)
            return [event for event in events if event.attempt >= first_attempt and event.seq < before]

        return cast("Observable[AnyEvent]", prepend_past(source, read))

    def scheduler(self) -> abc.SchedulerBase:
        """The scheduler of the run; starts the run."""
        self.start()
        return cast("abc.SchedulerBase", self._attempt.life.scheduler)

    def keep(self) -> Callable[[], None]:
        """Keep the run going until the function that is returned is called."""
        # Among the observers of the hub, and so reachable from the tasks of the run, for as long as it lasts.
        token = (object(), self)
        self._attempt.holds.add(token)
        return lambda: self._attempt.holds.discard(token)

    def start(self) -> asyncio.Task[None]:
        """Start the run, once."""
        if self.driver is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise RxloopError(NO_LOOP) from None
            attempt = self._attempt
            # Looked for here, and not by the task, so that of two that are started together the first one is the run.
            attempt.exists = attempt.spec.chosen_id and self._owned.find(attempt.task_id) is not None
            self.driver = start(attempt, loop)
            # The outcome is told by the stream and to those who await; nobody has to fetch it from the task.
            self.driver.add_done_callback(_fetch)
            self._owned.add(self)
        elif self._attempt.life.event_loop is not get_running_loop(f"reading the run {self._attempt.task_id}"):
            raise RxloopError(
                f"the run {self._attempt.task_id} belongs to another event loop; start a new run in this one"
            )
        return self.driver

    def cancel(self, reason: str | None) -> None:
        """Begin to cancel the run."""
        self._attempt.life.cancel(reason)

    async def cancelled(self, reason: str) -> None:
        """Cancel the run, in whatever event loop it is, and wait for its end."""
        await self._in_its_loop(lambda: self.aclose(reason))

    async def durable(self) -> None:
        """Wait, in whatever event loop the run is, until everything that its readers have seen is in the log."""
        await self._in_its_loop(self._attempt.durable)

    async def _in_its_loop(self, act: Callable[[], Coroutine[Any, Any, object]]) -> None:
        loop = self._attempt.life.event_loop
        if loop is None or loop is asyncio.get_running_loop():
            await act()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(act(), loop))

    async def aclose(self, reason: str) -> None:
        """Cancel the run, and wait for its end however often the waiting task is cancelled itself."""
        self.cancel(reason)
        await self._over()

    async def release(self, grace: float) -> None:
        """Give the run up without ending it, and wait until nothing of it is left here."""
        if self.driver is None:
            return
        attempt = self._attempt
        attempt.noticed = True
        attempt.life.in_loop(attempt.life.finish, Released(grace))
        await self._over()

    async def _over(self) -> None:
        # A tool that closes its own run cannot wait for an end that waits for the tool.
        if self.driver is None or self._attempt.info.scope.contains():
            return
        await wait_all([self.driver])


def _fetch(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _abandoned(attempt: Attempt) -> None:
    if not attempt.life.used:
        name = attempt.info.agent_name
        text = f"the run {attempt.task_id} of {name!r} was never started: await it, iterate it or subscribe to it"
        if attempt.made_at is not None:
            warnings.warn_explicit(text, RuntimeWarning, *attempt.made_at)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    elif not attempt.noticed and (failure := _failure(attempt)) is not None:
        log.warning(
            "the run %s of %r failed, and nobody asked how it ended: %s. Await it, or read run.text(), which raises",
            attempt.task_id,
            attempt.info.agent_name,
            failure,
        )
    elif attempt.life.event_loop is not None and not attempt.life.event_loop.is_closed() and not attempt.life.ending:
        attempt.life.event_loop.call_soon_threadsafe(attempt.life.finish, Canceled("nobody holds the run any more"))


def _failure(attempt: Attempt) -> str | None:
    """The code and message of what the run failed by, or was refused for."""
    if attempt.refusal is not None:
        return f"[{error_code(attempt.refusal)}] {attempt.refusal}"
    final = attempt.final
    if not isinstance(final, StatusUpdateEvent) or final.state not in ("failed", "working") or final.error is None:
        return None
    return f"[{final.error.code}] {final.error.message}"


async def wait_stored(event_log: EventLog, task_id: str) -> None:
    """Wait until the log has all events that subscribers in this process have seen, such as a question.

    Args:
        event_log: The log.
        task_id: The run. If another process executes it, there is nothing to wait for.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        await hold.durable()


async def read_open_questions(event_log: EventLog, task_id: str) -> list[PendingInput]:
    """Return the unanswered questions of a run, also while its other calls work.

    Args:
        event_log: The log. Its events are read if another process executes the run.
        task_id: The run.

    Raises:
        UnknownRun: The log does not have the run.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        return hold.pending
    return list(fold_all(await read_log(event_log.read, task_id)).pending.values())
