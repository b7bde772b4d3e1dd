"""Detection of stuck runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, cast

from rxloop.stream.scope import Scope, call_outside

log = logging.getLogger("rxloop")

WARNING_DELAY = 60.0
"""Seconds after which we warn about a thread that blocks the detection, because it may be unrelated to the run."""
_TURNS = 3
"""Number of event loop iterations to wait for callbacks of completed tasks."""

_WATCH = "rxloop-watch"
_POOLS = ("asyncio_", "AnyIO worker thread", "ThreadPoolExecutor-", "rxloop-")
"""Name prefixes of pool threads. A task or an observed future waits for their work."""


class Watchdog:
    """Callback for runs whose pipeline can make no more progress.

    The check only runs when the last task or timer of the run's scope has ended. Other objects can also advance the
    pipeline: tasks, event loop timers and thread pool functions created in the run's context, threads started since,
    and any future with a callback that was added in the run. The check finds them by scanning all objects, which is
    acceptable because it is rare. If such an object exists, the check is repeated when it has ended.
    """

    __slots__ = ("_is_open", "_loop", "_older_threads", "_on_stuck", "_scope", "_task_id")

    def __init__(self, task_id: str, scope: Scope, is_open: Callable[[], bool], on_stuck: Callable[[], None]) -> None:
        """Start watching a scope.

        Args:
            task_id: Id of the run.
            scope: Scope of the run.
            is_open: Returns True if the run has not ended yet.
            on_stuck: Called if the run can make no more progress.
        """
        self._task_id = task_id
        self._scope = scope
        self._is_open = is_open
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._older_threads = tuple(threading.enumerate())
        scope.on_idle = self.check

    def check(self, turns: int = _TURNS, again: bool = True) -> None:
        """Check the run after some event loop iterations, and a second time if nothing was found."""
        if not self._is_open() or self._scope.busy:
            return
        if turns:
            self._check_later(turns - 1, again)
            return
        other = next(self._find_others(), None)
        if other is None:
            if again or self._has_ready_callback():
                self._check_later(_TURNS, False)
            else:
                self._on_stuck()
        elif isinstance(other, threading.Thread):
            threading.Thread(
                target=self._wait_for_thread, args=[other], name=f"{_WATCH}-{other.name}", daemon=True
            ).start()
        elif asyncio.isfuture(other):
            call_outside(other.add_done_callback, self._on_done)
        else:
            call_outside(self._loop.call_later, max(0.0, other.when() - self._loop.time()), self.check)

    def _check_later(self, turns: int, again: bool) -> None:
        call_outside(self._loop.call_soon, self.check, turns, again)

    def _has_ready_callback(self) -> bool:
        """Return True if the event loop is about to call a function of the run, if the loop exposes this."""
        ready: Any = getattr(self._loop, "_ready", ())
        return any(self._is_of_run(handle) for handle in ready)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        self.check()

    def _wait_for_thread(self, thread: threading.Thread) -> None:
        # The loop may have a virtual clock, but threads work in real time, so do not use a timer of the loop.
        thread.join(WARNING_DELAY)
        if thread.is_alive() and self._is_open():
            log.warning(
                "Only the thread %r can advance run %s, and it has been running for %g s; if the thread is unrelated, "
                "the run is stuck until run.cancel() or its time limit ends it",
                thread.name,
                self._task_id,
                WARNING_DELAY,
            )
        thread.join()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.check)

    def _find_others(self) -> Iterator[Any]:
        """Yield objects outside of the scope that can advance the pipeline."""
        for task in asyncio.all_tasks(self._loop):
            if self._is_of_run(task) and not self._scope.is_waiting(task) and not self._scope.owns(task):
                yield task
        for thread in threading.enumerate():
            if thread not in self._older_threads and not thread.name.startswith(_POOLS):
                yield thread
        objects: list[Any] = gc.get_objects()
        for candidate in objects:
            kind = cast("type[Any]", type(candidate))
            if issubclass(kind, asyncio.Future):
                if not candidate.done() and (self._resumes_run(candidate) or self._is_thread_future(candidate)):
                    yield candidate
            elif (
                # uvloop uses its own class, but the name and methods are the same.
                kind.__name__ == "TimerHandle"
                and not candidate.cancelled()
                and candidate.when() > self._loop.time()
                and self._is_of_run(candidate)
            ):
                yield candidate

    def _resumes_run(self, future: asyncio.Future[Any]) -> bool:
        """Return True if a callback of the future belongs to the run, no matter who created the future."""
        if isinstance(future, asyncio.Task) and (self._scope.is_waiting(future) or self._scope.owns(future)):
            return False
        callbacks: Any = getattr(future, "_callbacks", None) or ()
        return any(
            self._scope.contains(context) and not _is_asyncio_callback(callback) for callback, context in callbacks
        )

    def _is_thread_future(self, future: asyncio.Future[Any]) -> bool:
        """Return True if a future is completed by a thread. Its callbacks refer to a thread future."""
        callbacks: Any = getattr(future, "_callbacks", None) or ()
        cells = (cell for callback, _ in callbacks for cell in getattr(callback, "__closure__", None) or ())
        return any(isinstance(cell.cell_contents, ThreadFuture) for cell in cells) and self._is_of_run(future)

    def _is_of_run(self, candidate: object) -> bool:
        return any(isinstance(item, Context) and self._scope.contains(item) for item in gc.get_referents(candidate))


def _is_asyncio_callback(callback: object) -> bool:
    """Return True if a callback wakes a task or notifies another future. Those are checked separately."""
    if isinstance(callback, partial):
        callback = cast("partial[Any]", callback).func
    if isinstance(getattr(callback, "__self__", None), asyncio.Task):
        return True
    return str(getattr(callback, "__module__", "")).startswith("asyncio.")
