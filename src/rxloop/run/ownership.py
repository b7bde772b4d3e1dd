"""Ownership of running attempts. Runs are cancelled when neither their handle nor their streams are referenced."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from reactivex import Observable, abc

from rxloop.errors import RxloopError
from rxloop.operators.views.after import after as after_cursor
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import process_events
from rxloop.protocol.events import WAITING, AnyEvent, Event, PendingInput, StatusUpdateEvent
from rxloop.protocol.ids import Cursor, read_cursor
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import get_error_code
from rxloop.run.lifecycle import start
from rxloop.run.lifetime import Canceled, Phase, Released
from rxloop.run.result import copy_error, get_final_event
from rxloop.state.fold import fold_all
from rxloop.stream.back_pressure import Gate
from rxloop.stream.scope import get_running_loop
from rxloop.support.tasks import wait_all

log = logging.getLogger("rxloop")


class OwnedRuns:
    """Runs started by this process and still referenced. One instance per log object, or per agent without a log."""

    def __init__(self) -> None:
        self._holds: weakref.WeakSet[RunHold] = weakref.WeakSet()

    def add(self, hold: RunHold) -> None:
        """Add a started run."""
        self._holds.add(hold)

    def find(self, task_id: str) -> RunHold | None:
        """Return the run executing in this process under that id, whichever agent created it."""
        return next((hold for hold in list(self._holds) if hold.task_id == task_id and hold.is_executing), None)


def find_owned(event_log: EventLog, task_id: str) -> RunHold | None:
    """Return the run executing in this process with that log object, or None."""
    return event_log.local.get(OwnedRuns).find(task_id)


class RunHold:
    """Reference shared between a run's handle and its streams. Dropping the last one ends the run."""

    def __init__(self, attempt: Attempt, owned: OwnedRuns) -> None:
        """Create a hold for a run that hasn't been started.

        Args:
            attempt: Attempt of the run.
            owned: Collection to add the run to when started.
        """
        self._attempt, self._owned = attempt, owned
        self.task: asyncio.Task[None] | None = None
        """Task executing the run, set when started."""
        weakref.finalize(self, _handle_dropped, attempt).atexit = False

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self._attempt.task_id

    @property
    def has_log(self) -> bool:
        """True if the run has a log, so that other processes can continue it."""
        return self._attempt.info.log is not None

    @property
    def is_called_from_tool(self) -> bool:
        """True if called from one of the run's tools."""
        return self._attempt.info.scope.contains()

    @property
    def is_executing(self) -> bool:
        """True while executing in a running event loop."""
        loop = self._attempt.lifetime.event_loop
        return self.task is not None and not self.task.done() and loop is not None and loop.is_running()

    @property
    def is_unfinished(self) -> bool:
        """True if the attempt has ended without ending the run, for example while it waits for an answer."""
        final = self._attempt.final
        return isinstance(final, StatusUpdateEvent) and final.state in (*WAITING, "working")

    @property
    def end(self) -> StatusUpdateEvent | None:
        """Final event, if logged and no further attempt is expected."""
        final = self._attempt.final
        if not isinstance(final, StatusUpdateEvent) or final.state not in ("completed", "failed"):
            return None
        return None if final.error is not None and final.error.retryable else final

    @property
    def pending(self) -> list[PendingInput]:
        """Pending questions, including those from nested runs."""
        return list(self._attempt.recorder.state().pending.values())

    @property
    def gate(self) -> Gate:
        """Gate for pausing the run's sockets."""
        return self._attempt.info.scope.gate

    def events(self, after: str | None = None, *, strict: bool = True) -> Observable[AnyEvent]:
        """Return the events of the run. Events no longer in memory are read from the log.

        Args:
            after: Cursor of the last event to skip. Defaults to including all events of this attempt.
            strict: Whether to reject invalid cursors. Otherwise they are treated as unknown.
        """
        attempt = self._attempt
        # Users match custom kinds using `isinstance`, so type checkers may assume the built-in kinds here.
        source = cast("Observable[AnyEvent]", attempt.recorder.hub.events)
        if after is not None:
            return after_cursor(after, strict=strict)(self._add_past(source, 1, read_cursor(after, strict=strict)))
        return self._add_past(source, attempt.first_attempt) if attempt.recorder.hub.trimmed else source

    def _add_past(
        self, source: Observable[AnyEvent], first_attempt: int, cursor: Cursor | None = None
    ) -> Observable[AnyEvent]:
        attempt, log = self._attempt, self._attempt.info.log
        if log is None:
            return source
        # Imported here to keep `import rxloop` fast.
        from rxloop.stream.readers import prepend_past

        async def read(before: int) -> Sequence[Event]:
            await attempt.durable()
            events: Sequence[Event] = ()
            if cursor is not None and cursor.task_id == attempt.task_id and 0 < cursor.seq < before:
                events = await log.read(attempt.task_id, after_seq=cursor.seq - 1)
            if cursor is None or not events or (events[0].seq, events[0].attempt) != (cursor.seq, cursor.attempt):
                # Earlier events are needed to detect gaps.
                events = await log.read(attempt.task_id)
            return [event for event in events if event.attempt >= first_attempt and event.seq < before]

        return cast("Observable[AnyEvent]", prepend_past(source, read))

    def scheduler(self) -> abc.SchedulerBase:
        """Return the run's scheduler, starting the run if necessary."""
        self.start()
        return cast("abc.SchedulerBase", self._attempt.lifetime.scheduler)

    def keep(self) -> Callable[[], None]:
        """Keep the run alive until the returned function is called."""
        # The run's tasks can reach the hub's observers, and therefore this hold.
        token = (object(), self)
        self._attempt.holders.add(token)
        return lambda: self._attempt.holders.discard(token)

    def start(self) -> asyncio.Task[None]:
        """Start the run, unless already started."""
        if self.task is None:
            loop = get_running_loop(
                "a run", "await it inside async code, use asyncio.run(run.result()) or agent.run_sync()"
            )
            attempt = self._attempt
            # Check before starting the task, so that only the first of two concurrent runs is accepted.
            attempt.id_in_use = attempt.spec.chosen_id and self._owned.find(attempt.task_id) is not None
            self.task = start(attempt, loop)
            # Errors are delivered through the stream and to awaiters, so mark the exception as retrieved.
            self.task.add_done_callback(_retrieve_exception)
            self._owned.add(self)
        elif self._attempt.lifetime.event_loop is not get_running_loop(f"reading the run {self._attempt.task_id}"):
            raise RxloopError(f"run {self._attempt.task_id} belongs to another event loop; start a new run in this one")
        return self.task

    async def wait(self) -> StatusUpdateEvent:
        """Wait for the end of the run, and return its final event.

        Unlike awaiting the run, this does not parse the messages of the conversation.

        Raises:
            RxloopError: The run was refused.
        """
        task, attempt = self.start(), self._attempt
        if attempt.info.scope.owns(asyncio.current_task()):
            raise RxloopError(f"a tool of run {self.task_id} awaits its own run, which would deadlock")
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self.aclose("the task that awaited the run was cancelled")
            raise
        attempt.is_observed = True
        if (refusal := task.exception()) is not None:
            raise copy_error(refusal)
        return get_final_event(attempt)

    def cancel(self, reason: str | None) -> None:
        """Request cancellation of the run."""
        self._attempt.lifetime.cancel(reason)

    async def cancel_and_wait(self, reason: str) -> None:
        """Cancel the run in its event loop and wait until it has ended."""
        await self._run_in_loop(lambda: self.aclose(reason))

    async def durable(self) -> None:
        """Wait until everything seen by subscribers has been logged. Works from other event loops."""
        await self._run_in_loop(self._attempt.durable)

    async def _run_in_loop(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        loop = self._attempt.lifetime.event_loop
        if loop is None or loop is asyncio.get_running_loop():
            await action()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(action(), loop))

    async def aclose(self, reason: str) -> None:
        """Cancel the run, and keep waiting for it to end even if the waiting task is cancelled."""
        self.cancel(reason)
        await self._wait_end()

    async def release(self, grace: float) -> None:
        """Release the run without ending it, and wait until this process has stopped working on it."""
        if self.task is None:
            return
        attempt = self._attempt
        attempt.is_observed = True
        attempt.lifetime.call_in_loop(attempt.lifetime.finish, Released(grace))
        await self._wait_end()

    async def _wait_end(self) -> None:
        # A tool closing its own run can't wait, because the run would wait for the tool.
        if self.task is None or self._attempt.info.scope.contains():
            return
        await wait_all([self.task])


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _handle_dropped(attempt: Attempt) -> None:
    lifetime = attempt.lifetime
    if not lifetime.is_used:
        name = attempt.info.agent_name
        text = f"run {attempt.task_id} of {name!r} was never started: await it, iterate over it, or subscribe to it"
        if attempt.created_at is not None:
            warnings.warn_explicit(text, RuntimeWarning, *attempt.created_at)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    elif not attempt.is_observed and (failure := _describe_failure(attempt)) is not None:
        log.warning(
            "Run %s of %r failed, but its result was never retrieved: %s. Await the run, or iterate over run.text()",
            attempt.task_id,
            attempt.info.agent_name,
            failure,
        )
    elif lifetime.event_loop is not None and not lifetime.event_loop.is_closed() and not lifetime.is_ending:
        lifetime.event_loop.call_soon_threadsafe(lifetime.finish, Canceled("the run is no longer referenced"))
    if lifetime.phase in (Phase.OVER, Phase.REFUSED):
        # The frames of their tracebacks refer to the attempt, which would only be freed by a garbage collection.
        attempt.refusal = None
        lifetime.revise(None)


def _describe_failure(attempt: Attempt) -> str | None:
    """Describe why the run failed or was refused. None if neither happened."""
    if attempt.refusal is not None:
        return f"[{get_error_code(attempt.refusal)}] {attempt.refusal}"
    final = attempt.final
    if not isinstance(final, StatusUpdateEvent) or final.state not in ("failed", "working") or final.error is None:
        return None
    return f"[{final.error.code}] {final.error.message}"


async def wait_stored(event_log: EventLog, task_id: str) -> None:
    """Wait until everything seen by subscribers in this process has been logged.

    Args:
        event_log: Log with the run.
        task_id: Id of the run. Nothing to wait for if another process is executing it.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        await hold.durable()


async def read_open_questions(event_log: EventLog, task_id: str) -> list[PendingInput]:
    """Return the run's unanswered questions, even while other calls are running.

    Args:
        event_log: Log with the run, which is read if another process is executing the run.
        task_id: Id of the run.

    Raises:
        UnknownRun: The run isn't in the log.
    """
    hold = find_owned(event_log, task_id)
    if hold is not None:
        return hold.pending
    return list((await process_events(event_log, task_id, fold_all)).pending.values())
