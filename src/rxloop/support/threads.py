"""Daemon threads for blocking work, and calls of user functions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import ref

from typing_extensions import override

from rxloop.errors import RxloopError

T = TypeVar("T")

log = logging.getLogger("rxloop")

THREAD_NAME = "rxloop-work-"

_AT_WORK = 128

_STUCK = 1_000

_IDLE_SECONDS = 10.0


class Work(Generic[T]):
    """A piece of work for a thread, with the context variables of whoever wants it done.

    Args:
        function: What is to be done.
    """

    __slots__ = ("_context", "_function", "begun", "has_thread", "left")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = copy_context()
        self.has_thread = False
        self.begun = False
        self.left = False
        """Whether nobody waits for it any more."""

    def __call__(self) -> T:
        """Do it, in the thread.

        Raises:
            RuntimeError: It raised what a future cannot hold, or what would end the process from there.
        """
        self.begun = True
        try:
            return self._context.run(self._function)
        except StopIteration as error:
            # A future cannot hold a StopIteration: whoever waits for it would wait for ever.
            raise RuntimeError("the function raised StopIteration") from error
        except SystemExit as error:
            # From a thread it would end only the thread; handed on, it would end the process.
            raise RuntimeError(f"the function called exit({error.code!r})") from error


class Threads(Executor):
    """Threads that are made when they are needed and wait for a while for more.

    Work that is left by whoever waited for it, and goes on, counts as stuck: its thread is replaced.

    Args:
        at_work: How many pieces of work may be under way; further ones wait for their turn.
        stuck: How many may be stuck; then no more are begun until one of them ends.
        idle_seconds: How long a thread waits for more work until it ends.
    """

    def __init__(self, at_work: int = _AT_WORK, stuck: int = _STUCK, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._most_at_work = at_work
        self._most_stuck = stuck
        self._idle_seconds = idle_seconds
        self._numbers = count(1)
        self.forget()

    def forget(self) -> None:
        """Start again without threads: a forked process has none."""
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Job]] = []
        self._waiting: deque[_Job] = deque()
        self._at_work = 0
        self.stuck = 0
        """How many pieces of work go on that nobody waits for."""

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have something done, such as a `Work`.

        Raises:
            RxloopError: Too many are stuck.
        """
        job = _Job(cast("Work[T]", fn) if isinstance(fn, Work) else Work(partial(fn, *args, **kwargs)))
        with self._lock:
            if self.stuck >= self._most_stuck:
                raise RxloopError(
                    f"{self.stuck} calls that were cut off still run in their threads, and no more are begun until one "
                    "of them ends: give what they wait for a timeout of its own"
                )
            if self._at_work >= self._most_at_work:
                self._waiting.append(job)
            else:
                self._begin(job)
        return job.future

    def leave(self, work: Work[Any]) -> bool:
        """Say that nobody waits for a piece of work any more; whether it goes on in its thread all the same."""
        with self._lock:
            if not work.has_thread:
                return False
            work.left = True
            self._at_work -= 1
            self.stuck += 1
            if self._waiting and self._at_work < self._most_at_work:
                self._begin(self._waiting.popleft())
        return work.begun

    def _begin(self, job: _Job) -> None:
        self._at_work += 1
        job.work.has_thread = True
        if self._idle:
            # The one that was busy last: the others may come to their end.
            self._idle.pop().put(job)
            return
        mailbox: SimpleQueue[_Job] = SimpleQueue()
        # Not as an argument, which a thread keeps for as long as it lives.
        mailbox.put(job)
        name = f"{THREAD_NAME}{next(self._numbers)}"
        threading.Thread(target=_serve, args=(ref(self), mailbox, self._idle_seconds), name=name, daemon=True).start()

    def next_job(self, done: Work[Any], mailbox: SimpleQueue[_Job]) -> _Job | None:
        """Take note, in a thread, that its work has ended; what it is to do now, if it need not wait."""
        with self._lock:
            done.has_thread = False
            if done.left:
                self.stuck -= 1
            else:
                self._at_work -= 1
            if self._waiting and self._at_work < self._most_at_work:
                job = self._waiting.popleft()
                self._at_work += 1
                job.work.has_thread = True
                return job
            self._idle.append(mailbox)
        return None

    def retire(self, mailbox: SimpleQueue[_Job]) -> bool:
        """Tell whether a thread that has waited long enough may end; not if it has just been chosen for work."""
        with self._lock:
            if mailbox not in self._idle:
                return False
            self._idle.remove(mailbox)
        return True


class _Job:
    """Work, and the future that tells of its end."""

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
            # Held here, and the error by it, and this frame by the error, it would wait for the garbage collector.
            del self, future
        else:
            future.set_result(result)


def _serve(threads: ref[Threads], mailbox: SimpleQueue[_Job], idle_seconds: float) -> None:
    job: _Job | None = mailbox.get()
    while job is not None:
        job.run()
        work = job.work
        # What it holds would otherwise be kept until the next one.
        del job
        pool = threads()
        if pool is None:
            return
        job = pool.next_job(work, mailbox)
        del work, pool
        if job is None:
            job = _awaited(threads, mailbox, idle_seconds)


def _awaited(threads: ref[Threads], mailbox: SimpleQueue[_Job], idle_seconds: float) -> _Job | None:
    try:
        return mailbox.get(timeout=idle_seconds)
    except Empty:
        pool = threads()
        return None if pool is None or pool.retire(mailbox) else mailbox.get()


THREADS = Threads()
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THREADS.forget)


async def run_in_thread(function: Callable[[], T], *, left: Callable[[], None] | None = None) -> T:
    """Run a function in a thread that has a copy of the context variables.

    A thread cannot be cancelled: when this is, the function goes on, and what comes of it is dropped.

    Args:
        function: What blocks.
        left: Called when this is cancelled while the function goes on.
    """
    work = Work(function)
    try:
        return await asyncio.get_running_loop().run_in_executor(THREADS, work)
    except asyncio.CancelledError:
        if THREADS.leave(work) and left is not None:
            left()
        raise


async def call_user_function(function: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """Call a function of somebody else's, sync or async.

    A plain one runs in a thread: on the event loop, one that never returns would hold every run of the process, and
    no time limit would help.
    """
    made: Any
    if inspect.iscoroutinefunction(function):
        made = function(*arguments)
    else:
        made = await run_in_thread(lambda: function(*arguments))
    return await made if inspect.isawaitable(made) else made
