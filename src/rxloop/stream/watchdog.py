"""Notices a run in which nothing can happen any more."""

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

from rxloop.stream.scope import Scope, outside

log = logging.getLogger("rxloop")

SILENCE = 60.0
"""Seconds after which a thread that a run waits for is named in a warning: it may have nothing to do with the run."""
_TURNS = 3
"""Rounds of the event loop that a callback may take to go on from what is over."""

_WATCH = "rxloop-watch"
_POOLS = ("asyncio_", "AnyIO worker thread", "ThreadPoolExecutor-", "rxloop-")
"""Threads that work for somebody who waits for them in a task, or in a future that is seen."""


class Watchdog:
    """Calls somebody when nothing is left that could bring the pipeline of a run on.

    It looks when the last task or timer of the run's scope is over, and never in between. What the scope does not own
    may bring the pipeline on as well, if it was made in the run and so has the run's context: a task, a timer of the
    event loop, a function in the loop's threads; or a thread that was started since. So may a future of anybody with a
    callback that was added in the run. All that is looked for only then, which is seldom enough to go through all
    objects there are; where there is any, its end is waited for.
    """

    __slots__ = ("_loop", "_older_threads", "_open", "_scope", "_stuck", "_task_id")

    def __init__(self, task_id: str, scope: Scope, open_: Callable[[], bool], stuck: Callable[[], None]) -> None:
        """Watch a scope.

        Args:
            task_id: The run.
            scope: Its scope.
            open_: Whether the run still has to come to its end.
            stuck: Called when it cannot.
        """
        self._task_id = task_id
        self._scope = scope
        self._open = open_
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._older_threads = tuple(threading.enumerate())
        scope.idle = self.look

    def look(self, turns: int = _TURNS, again: bool = True) -> None:
        """Look whether anything is left, some rounds of the event loop later, and once more where nothing is."""
        if not self._open() or self._scope.busy:
            return
        if turns:
            self._soon(turns - 1, again)
            return
        other = next(self._others(), None)
        if other is None:
            if again or self._is_due():
                self._soon(_TURNS, False)
            else:
                self._stuck()
        elif isinstance(other, threading.Thread):
            threading.Thread(
                target=self._look_after_thread, args=[other], name=f"{_WATCH}-{other.name}", daemon=True
            ).start()
        elif asyncio.isfuture(other):
            outside(other.add_done_callback, self._look_after)
        else:
            outside(self._loop.call_later, max(0.0, other.when() - self._loop.time()), self.look)

    def _soon(self, turns: int, again: bool) -> None:
        outside(self._loop.call_soon, self.look, turns, again)

    def _is_due(self) -> bool:
        """Tell whether something of the run is called in this round of the event loop, where that can be known."""
        ready: Any = getattr(self._loop, "_ready", ())
        return any(self._is_of_run(handle) for handle in ready)

    def _look_after(self, future: asyncio.Future[Any]) -> None:
        self.look()

    def _look_after_thread(self, thread: threading.Thread) -> None:
        # Not by a timer of the loop: the thread works in real time, whatever time the loop has.
        thread.join(SILENCE)
        if thread.is_alive() and self._open():
            log.warning(
                "nothing but the thread %r can bring the run %s on, and it has not ended for %g s: if it does not work "
                "for the run, the run is stuck, and ends by run.cancel() or by its limit for the time",
                thread.name,
                self._task_id,
                SILENCE,
            )
        thread.join()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.look)

    def _others(self) -> Iterator[Any]:
        """Find what may bring the pipeline on and is not in the scope."""
        for task in asyncio.all_tasks(self._loop):
            if self._is_of_run(task) and not self._scope.waits(task) and not self._scope.owns(task):
                yield task
        for thread in threading.enumerate():
            if thread not in self._older_threads and not thread.name.startswith(_POOLS):
                yield thread
        objects: list[Any] = gc.get_objects()
        for found in objects:
            kind = cast("type[Any]", type(found))
            if issubclass(kind, asyncio.Future):
                if not found.done() and (self._goes_on_after(found) or self._is_done_in_a_thread(found)):
                    yield found
            elif (
                # That of uvloop has the same name and methods.
                kind.__name__ == "TimerHandle"
                and not found.cancelled()
                and found.when() > self._loop.time()
                and self._is_of_run(found)
            ):
                yield found

    def _goes_on_after(self, future: asyncio.Future[Any]) -> bool:
        """Tell whether the run goes on by a callback when a future is done, whoever that belongs to."""
        if isinstance(future, asyncio.Task) and (self._scope.waits(future) or self._scope.owns(future)):
            return False
        callbacks: Any = getattr(future, "_callbacks", None) or ()
        return any(self._scope.surrounds(context) and not _is_of_asyncio(callback) for callback, context in callbacks)

    def _is_done_in_a_thread(self, future: asyncio.Future[Any]) -> bool:
        """Tell whether a future is that of a function in a thread: a callback of it cancels the thread's own future."""
        callbacks: Any = getattr(future, "_callbacks", None) or ()
        cells = (cell for callback, _ in callbacks for cell in getattr(callback, "__closure__", None) or ())
        return any(isinstance(cell.cell_contents, ThreadFuture) for cell in cells) and self._is_of_run(future)

    def _is_of_run(self, found: object) -> bool:
        return any(isinstance(held, Context) and self._scope.surrounds(held) for held in gc.get_referents(found))


def _is_of_asyncio(callback: object) -> bool:
    """Tell whether a callback wakes up a task, or passes on to another future: these are looked at themselves."""
    if isinstance(callback, partial):
        callback = cast("partial[Any]", callback).func
    if isinstance(getattr(callback, "__self__", None), asyncio.Task):
        return True
    return str(getattr(callback, "__module__", "")).startswith("asyncio.")
