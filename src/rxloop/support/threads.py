"""Daemon threads for blocking work and user functions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet, ref

from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.support.garbage import free_in_parts, ignore_large_data
from rxloop.support.tasks import is_cancelled

T = TypeVar("T")

log = logging.getLogger("rxloop")

THREAD_NAME = "rxloop-work-"

_MAX_RUNNING = 128

_MAX_STUCK_CALLS = 1_000

_IDLE_SECONDS = 10.0


class Work(Generic[T]):
    """Callable for worker threads, using a copy of the caller's context.

    Args:
        function: The function.
        owner: Principal on whose behalf the function is called, or None.
    """

    __slots__ = ("_context", "_function", "abandoned", "has_thread", "owner", "started")

    def __init__(self, function: Callable[[], T], owner: str | None = None) -> None:
        self._function = function
        self.owner = owner
        self._context = copy_context()
        self.has_thread = False
        self.started = False
        self.abandoned = False
        """True if no caller waits for the result."""

    def __call__(self) -> T:
        """Run the function in the copied context.

        Raises:
            RuntimeError: The function raised StopIteration or SystemExit.
        """
        self.started = True
        try:
            return self._context.run(self._function)
        except StopIteration as error:
            # A future cannot hold a StopIteration, so its caller would wait forever.
            raise RuntimeError("the function raised StopIteration") from error
        except SystemExit as error:
            # Re-raising SystemExit in the caller would end the process.
            raise RuntimeError(f"the function called exit({error.code!r})") from error


_POOLS: WeakSet[Threads] = WeakSet()
"""All thread pools of this process."""


class Threads(Executor):
    """Thread pool that starts threads on demand and ends them when they are idle.

    If a caller abandons its work but the function is still running, its thread counts as stuck and is replaced.

    Args:
        max_running: Maximum number of functions that run at the same time. Further functions are queued.
        max_stuck: Maximum number of stuck threads. No functions are accepted while it is reached.
        idle_seconds: Time in seconds after which an idle thread ends.
        max_per_owner: Maximum number of threads per owner, including stuck threads. Functions of other owners overtake
            further functions in the queue.
    """

    def __init__(
        self,
        max_running: int = _MAX_RUNNING,
        max_stuck: int = _MAX_STUCK_CALLS,
        idle_seconds: float = _IDLE_SECONDS,
        max_per_owner: int = _MAX_RUNNING,
    ) -> None:
        self._max_running = max_running
        self._max_stuck = max_stuck
        self._max_per_owner = max_per_owner
        self._idle_seconds = idle_seconds
        self._numbers = count(1)
        self.reset()
        _POOLS.add(self)

    def reset(self) -> None:
        """Forget all threads, because a forked process has none."""
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Job]] = []
        self._queue: deque[_Job] = deque()
        self._running = 0
        self._owners: Counter[str | None] = Counter()
        """Number of threads per owner."""
        self.stuck = 0
        """Number of abandoned running functions."""

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function or a `Work` object in a thread, or queue it if all threads are busy.

        Raises:
            RxloopError: The limit of stuck threads is reached.
        """
        job = _Job(cast("Work[T]", fn) if isinstance(fn, Work) else Work(partial(fn, *args, **kwargs)))
        with self._lock:
            if self.stuck >= self._max_stuck:
                raise RxloopError(
                    f"too many threads are stuck: {self.stuck} canceled calls are still running. "
                    "Use timeouts in blocking functions, so that they end."
                )
            if self._may_start(job.work):
                self._start(job)
            else:
                self._queue.append(job)
        return job.future

    def abandon(self, work: Work[Any]) -> bool:
        """Stop waiting for a function. Return True if it is still running."""
        with self._lock:
            if not work.has_thread:
                return False
            work.abandoned = True
            self._running -= 1
            self.stuck += 1
            job = self._pop_job()
            if job is not None:
                self._start(job)
        return work.started

    def _may_start(self, work: Work[Any]) -> bool:
        if self._running >= self._max_running:
            return False
        return work.owner is None or self._owners[work.owner] < self._max_per_owner

    def _pop_job(self) -> _Job | None:
        for index, job in enumerate(self._queue):
            if self._may_start(job.work):
                del self._queue[index]
                return job
        return None

    def _count(self, work: Work[Any]) -> None:
        self._running += 1
        self._owners[work.owner] += 1
        work.has_thread = True

    def _start(self, job: _Job) -> None:
        self._count(job.work)
        if self._idle:
            # Use the most recently active thread, so that other threads can time out.
            self._idle.pop().put(job)
            return
        inbox: SimpleQueue[_Job] = SimpleQueue()
        # Threads keep their arguments alive, so do not pass the job as an argument.
        inbox.put(job)
        name = f"{THREAD_NAME}{next(self._numbers)}"
        threading.Thread(target=_serve, args=(ref(self), inbox, self._idle_seconds), name=name, daemon=True).start()

    def next_job(self, done: Work[Any], inbox: SimpleQueue[_Job]) -> _Job | None:
        """Return the next queued job for a thread that finished its work, or None if the thread becomes idle."""
        with self._lock:
            done.has_thread = False
            if done.abandoned:
                self.stuck -= 1
            else:
                self._running -= 1
            self._owners[done.owner] -= 1
            if not self._owners[done.owner]:
                del self._owners[done.owner]
            job = self._pop_job()
            if job is None:
                self._idle.append(inbox)
            else:
                self._count(job.work)
        return job

    def retire(self, inbox: SimpleQueue[_Job]) -> bool:
        """Return True if an idle thread may end, or False if it has just received a job."""
        with self._lock:
            if inbox not in self._idle:
                return False
            self._idle.remove(inbox)
        return True


class _Job:
    """Work and result future."""

    __slots__ = ("future", "work")

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def run(self) -> None:
        future, work = self.future, self.work
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            # The error references this frame, so remove the references that would form a cycle.
            del self, future
        else:
            future.set_result(result)


def _serve(threads: ref[Threads], inbox: SimpleQueue[_Job], idle_seconds: float) -> None:
    job: _Job | None = inbox.get()
    while job is not None:
        job.run()
        work = job.work
        # Release the function and its arguments before waiting for the next job.
        del job
        pool = threads()
        if pool is None:
            return
        job = pool.next_job(work, inbox)
        del work, pool
        if job is None:
            job = _wait_for_job(threads, inbox, idle_seconds)


def _wait_for_job(threads: ref[Threads], inbox: SimpleQueue[_Job], idle_seconds: float) -> _Job | None:
    try:
        return inbox.get(timeout=idle_seconds)
    except Empty:
        pool = threads()
        return None if pool is None or pool.retire(inbox) else inbox.get()


THREADS = Threads()
"""Thread pool of this process."""


def _reset_pools() -> None:
    for pool in _POOLS:
        pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pools)


async def run_in_thread(
    function: Callable[[], T],
    *,
    threads: Threads | None = None,
    owner: str | None = None,
    on_abandoned: Callable[[], None] | None = None,
) -> T:
    """Run a function in a thread, with a copy of the context variables.

    Threads cannot be canceled. If this coroutine is canceled, the function continues, and its result is discarded.

    Args:
        function: Blocking function.
        threads: Thread pool. The default is `THREADS`.
        owner: Principal on whose behalf the function is called, for `max_per_owner` of the pool. None for no limit.
        on_abandoned: Called if this coroutine is canceled while the function is running.
    """
    work, threads = Work(function, owner), threads or THREADS
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    except asyncio.CancelledError:
        if threads.abandon(work) and on_abandoned is not None:
            on_abandoned()
        raise


_COMPUTING = Threads(max_running=1)
"""Thread for computations. Several threads would not be faster, because Python code holds a lock."""


_MAX_STEPS = 500
"""Maximum number of steps on the event loop, such as events to fold. They take a few milliseconds."""


async def compute(function: Callable[[], T], *, steps: int | None = None, threads: Threads = _COMPUTING) -> T:
    """Run a long computation in a thread, so that the event loop can run other tasks in between.

    Args:
        function: The computation.
        steps: Number of steps. A short computation runs on the event loop. None means that the number is unknown.
        threads: Thread pool. The default has one thread. Use another one for computations that must not wait for
            others, but not `THREADS`, because it executes user functions, which may wait for the computation.
    """
    if steps is not None and steps <= _MAX_STEPS:
        return function()
    with ignore_large_data(is_loaded=True):
        return await run_in_thread(function, threads=threads)


def free_in_thread(objects: list[Any]) -> None:
    """Remove the only sequence in a list, and free the objects in it. Many objects are freed in a thread.

    Freeing the events of a long run would block the event loop for 50 milliseconds. Finalizers may call this function.
    """
    if len(objects[0]) <= _MAX_STEPS:
        objects.clear()
        return
    try:
        # The garbage collector can call finalizers while this thread holds the lock of the pool.
        asyncio.get_running_loop().call_soon(_COMPUTING.submit, _free, objects)
    except RuntimeError:
        # This thread has no event loop, or the event loop is closed.
        _free(objects)


def _free(objects: list[Any]) -> None:
    free_in_parts([*objects.pop()])


async def call_user_function(function: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """Call a user function. Sync functions run in a thread.

    On the event loop, a blocking function would stop all runs of the process, including their timeouts.

    Raises:
        RuntimeError: The function awaited a canceled task or called `exit`, which must not end the caller.
    """
    result: Any
    try:
        if inspect.iscoroutinefunction(function):
            result = function(*arguments)
        else:
            result = await run_in_thread(lambda: function(*arguments))
        return await result if inspect.isawaitable(result) else result
    except (asyncio.CancelledError, SystemExit) as error:
        if is_cancelled(error):
            raise
        raise RuntimeError(f"the function raised {type(error).__name__}") from error
