"""Thread that owns the connection."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from rxloop.errors import EventLogError
from rxloop.support.threads import run_in_thread

T = TypeVar("T")

Connect = Callable[[], sqlite3.Connection]

Work = Callable[[sqlite3.Connection], None]

LOOK_SECONDS = 0.02


class Answer(Generic[T]):
    """A value that an event loop waits for and a thread gives.

    Not `run_in_executor`, whose futures have a lock and a condition each and cost as much as a write.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        """Give the value; from any thread."""
        self._settle_in_loop(lambda: self.future.set_result(value))

    def fail(self, error: Exception) -> None:
        """Give an error instead of a value; from any thread."""
        self._settle_in_loop(lambda: self.future.set_exception(error))

    def _settle_in_loop(self, settle: Callable[[], None]) -> None:
        def settle_once() -> None:
            if not self.future.done():
                settle()

        # The loop may be closed by now.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle_once)


class _Shared:
    """What a worker and its thread both know."""

    def __init__(self, look: Work | None, every: float, looking: bool) -> None:
        self.queue: SimpleQueue[tuple[Work, Callable[[Exception], None]] | None] = SimpleQueue()
        self.unfinished: deque[Work] = deque()
        """Work that was submitted and has not finished, which includes work that the thread has taken off the queue."""
        self.lock = threading.Lock()
        """Held by whoever uses the connection."""
        self.connection: sqlite3.Connection | None = None
        self.look = look
        self.every = every
        self.looking = looking
        self.looked = time.monotonic()
        self.asleep = False
        """The thread may be waiting for work, and for nothing else."""
        self.reopen = False
        """It was closed for a fork of the process."""
        self.pid = os.getpid()

    def submit(self, work: Work, failed: Callable[[Exception], None]) -> None:
        # Both operations are atomic and reentrant, so any thread and any finalizer may submit.
        self.unfinished.append(work)
        self.queue.put((work, failed))

    def close(self, *, reopen: bool = False) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.reopen = reopen


class Worker:
    """A thread and its connection, both made when they are first needed, and gone with this object if not before.

    Neither passes a fork of the process, where SQLite would take the parent's locks for the child's: the connection is
    closed before, and the parent opens it again; the child makes a connection and a thread of its own.
    """

    def __init__(self, connect: Connect, name: str, look: Work | None = None, every: float = LOOK_SECONDS) -> None:
        """Make a worker; no thread is started yet.

        Args:
            connect: Opens the connection.
            name: The name of the thread.
            look: What the thread does now and then, while that is wanted. It keeps neither this object nor its owner.
            every: Seconds between two looks.
        """
        self._connect = connect
        self._name = name
        self._look = look
        self._every = every
        self._looking = False
        self._shared: _Shared | None = None
        self._thread: threading.Thread | None = None
        _WORKERS.add(self)

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        shared = self._shared
        return shared is not None and shared.connection is not None

    def submit(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Do something with the connection in the thread; `failed` gets its error, or that of opening the file."""
        self._running().submit(work, failed)

    def keep_looking(self, wanted: bool) -> None:
        """Make the thread look now and then, or stop it from looking; this outlasts `aclose`."""
        self._looking = wanted
        shared = self._running() if wanted else self._shared
        if shared is not None and shared.looking != wanted:
            shared.looking, shared.looked = wanted, time.monotonic()
            # It finds out by itself when it wakes, and sees that there is nothing to look for.
            if wanted and shared.asleep:
                shared.queue.put(_NOTHING)

    def _running(self) -> _Shared:
        shared = self._shared
        if shared is None:
            shared = self._shared = _Shared(self._look, self._every, self._looking)
            # A daemon: at the end of the process, everything that anybody waits for is done.
            self._thread = threading.Thread(target=_serve, args=(shared, self._connect), name=self._name, daemon=True)
            self._thread.start()
            weakref.finalize(self, shared.queue.put, None).atexit = False
        _check_process(shared)
        return shared

    @contextmanager
    def borrowed(self) -> Generator[sqlite3.Connection | None]:
        """Lend the connection for short work on the caller's thread.

        Yields:
            The connection, or None if it is closed or in use, or if submitted work is unfinished. The queue alone
            does not show unfinished work: between taking a job off the queue and acquiring the lock, the thread
            holds a job that the caller must not overtake.
        """
        shared = self._shared
        if shared is None or shared.unfinished or not shared.lock.acquire(blocking=False):
            yield None
            return
        try:
            _check_process(shared)
            yield shared.connection
        finally:
            shared.lock.release()

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with the connection in the thread, and wait for what it returns."""
        answer = Answer[T]()
        self.submit(lambda connection: answer.give(work(connection)), answer.fail)
        return await answer.future

    async def aclose(self, last: Work | None = None) -> None:
        """Finish all work, and `last` as the last of it, close the connection and end the thread.

        The next work makes new ones.
        """
        shared, thread = self._shared, self._thread
        self._shared = self._thread = None
        if shared is not None and thread is not None and shared.pid == os.getpid():
            if last is not None and shared.connection is not None:
                shared.submit(last, lambda error: None)
            shared.queue.put(None)
            await run_in_thread(thread.join)

    def before_fork(self) -> Callable[[bool], None]:
        """Wait for the connection, and close it; return what to call after the fork, with whether this is the child."""
        shared = self._shared
        if shared is not None:
            shared.lock.acquire()
            shared.close(reopen=True)

        def after(child: bool) -> None:
            if shared is not None:
                shared.lock.release()
            if child:
                # It has no thread.
                self._shared = self._thread = None
                self._looking = False

        return after


def _serve(shared: _Shared, connect: Connect) -> None:
    while True:
        # In this order: whoever wants it to look meanwhile either is seen, or sees that it sleeps.
        shared.asleep = True
        shared.asleep = not shared.looking
        try:
            due = shared.looked + shared.every - time.monotonic()
            job = shared.queue.get(timeout=None if shared.asleep else max(due, 0))
        except Empty:
            job = _NOTHING
        if job is None:
            break
        work, failed = job
        with shared.lock:
            try:
                if shared.connection is None and (job is not _NOTHING or shared.reopen):
                    shared.connection = connect()
                if shared.connection is not None:
                    work(shared.connection)
            except Exception as error:
                failed(error)
            if job is not _NOTHING:
                shared.unfinished.popleft()
            now = time.monotonic()
            if shared.looking and now >= shared.looked + shared.every:
                shared.looked = now
                if shared.look is not None and shared.connection is not None:
                    shared.look(shared.connection)
        # What the job holds would otherwise be kept until the next one.
        del job, work, failed
    with shared.lock:
        shared.close()


_NOTHING: tuple[Work, Callable[[Exception], None]] = (lambda connection: None, lambda error: None)


def _check_process(shared: _Shared) -> None:
    """Check that the connection was not opened by another process.

    Raises:
        EventLogError: The process was forked by something that does not tell Python.
    """
    if shared.pid != os.getpid():
        raise EventLogError(
            f"this process was forked from {shared.pid} while the event log was open there, and not by os.fork: "
            "a SQLite connection does not pass a fork; make the log after the fork",
            retryable=False,
        )


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()

_FORKING = threading.Lock()

_after: list[Callable[[bool], None]] = []


def _before_fork() -> None:
    _FORKING.acquire()
    _after[:] = [worker.before_fork() for worker in list(_WORKERS)]


def _after_fork(child: bool) -> None:
    for after in _after:
        after(child)
    _after.clear()
    _FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
