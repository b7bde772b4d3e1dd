"""Worker thread for a SQLite connection."""

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

POLL_SECONDS = 0.02


class ThreadFuture(Generic[T]):
    """Result passed from a thread to an event loop.

    `run_in_executor` is not used, because its futures create a lock and a condition, and cost as much as a write.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def set_result(self, value: T) -> None:
        """Set the result. This method is thread-safe."""
        self._call_in_loop(lambda: self.future.set_result(value))

    def set_exception(self, error: Exception) -> None:
        """Set an exception. This method is thread-safe."""
        self._call_in_loop(lambda: self.future.set_exception(error))

    def _call_in_loop(self, complete: Callable[[], None]) -> None:
        def complete_once() -> None:
            if not self.future.done():
                complete()

        # The event loop may already be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(complete_once)


class _Shared:
    """State shared by a worker and its thread."""

    def __init__(self, poll: Work | None, interval: float, is_polling: bool) -> None:
        self.queue: SimpleQueue[tuple[Work, Callable[[Exception], None]] | None] = SimpleQueue()
        self.unfinished: deque[Work] = deque()
        """Submitted work that has not finished, including work already taken from the queue."""
        self.lock = threading.Lock()
        """Lock for the connection."""
        self.connection: sqlite3.Connection | None = None
        self.poll = poll
        self.interval = interval
        self.is_polling = is_polling
        self.polled_at = time.monotonic()
        self.asleep = False
        """True if the thread may be waiting for work without a timeout."""
        self.reopen = False
        """True if the connection was closed for a fork."""
        self.pid = os.getpid()

    @property
    def is_poll_due(self) -> bool:
        """True if the interval of the periodic function has passed."""
        return self.is_polling and time.monotonic() >= self.polled_at + self.interval

    def submit(self, work: Work, failed: Callable[[Exception], None]) -> None:
        # Both operations are atomic and reentrant, so threads and finalizers may call this method.
        self.unfinished.append(work)
        self.queue.put((work, failed))

    def close(self, *, reopen: bool = False) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.reopen = reopen


class Worker:
    """Thread with a SQLite connection. Both are created on demand, and end with this object at the latest.

    SQLite locks must not be inherited by a forked process. The connection is closed before a fork, and the parent
    reopens it. The child creates its own connection and thread.
    """

    def __init__(self, connect: Connect, name: str, poll: Work | None = None, interval: float = POLL_SECONDS) -> None:
        """Create a worker without starting its thread.

        Args:
            connect: Function that opens the connection.
            name: Thread name.
            poll: Periodic function. It must not refer to this object or its owner.
            interval: Interval of the periodic function in seconds.
        """
        self._connect = connect
        self._name = name
        self._poll = poll
        self._interval = interval
        self._is_polling = False
        self._shared: _Shared | None = None
        self._thread: threading.Thread | None = None
        _WORKERS.add(self)

    @property
    def is_open(self) -> bool:
        """True if the connection is open."""
        shared = self._shared
        return shared is not None and shared.connection is not None

    def submit(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Run `work` in the thread. Exceptions, including connection errors, are passed to `failed`."""
        self._ensure_running().submit(work, failed)

    def set_polling(self, enabled: bool) -> None:
        """Start or stop the periodic function. The setting survives `aclose`."""
        self._is_polling = enabled
        shared = self._ensure_running() if enabled else self._shared
        if shared is not None and shared.is_polling != enabled:
            shared.is_polling, shared.polled_at = enabled, time.monotonic()
            # Only starting needs a wake-up, because the thread checks the setting when it wakes.
            if enabled and shared.asleep:
                shared.queue.put(_NO_WORK)

    def _ensure_running(self) -> _Shared:
        shared = self._shared
        if shared is None:
            shared = _Shared(self._poll, self._interval, self._is_polling)
            # A daemon thread is safe, because callers wait for all important work before the process ends.
            thread = threading.Thread(target=_serve, args=(shared, self._connect), name=self._name, daemon=True)
            thread.start()
            self._shared, self._thread = shared, thread
            weakref.finalize(self, shared.queue.put, None).atexit = False
        _check_process(shared)
        return shared

    @contextmanager
    def borrow(self) -> Generator[sqlite3.Connection | None]:
        """Lend the connection for short work on the calling thread.

        Yields:
            The connection, or None if it is closed, in use, or has unfinished work. Checking only the queue is not
                enough, because the thread may have removed a job without having acquired the lock.
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

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread and return its result."""
        future = ThreadFuture[T]()
        self.submit(lambda connection: future.set_result(work(connection)), future.set_exception)
        return await future.future

    async def aclose(self, final_work: Work | None = None) -> None:
        """Finish all work, call `final_work`, close the connection and stop the thread.

        New work starts a new thread.
        """
        shared, thread = self._shared, self._thread
        self._shared = self._thread = None
        if shared is not None and thread is not None and shared.pid == os.getpid():
            if final_work is not None and shared.connection is not None:
                shared.submit(final_work, lambda error: None)
            shared.queue.put(None)
            await run_in_thread(thread.join)

    def before_fork(self) -> Callable[[bool], None]:
        """Close the connection before a fork.

        Returns:
            Callback for use after the fork. Its argument is True in the child process.
        """
        shared = self._shared
        if shared is not None:
            shared.lock.acquire()
            shared.close(reopen=True)

        def after(child: bool) -> None:
            if shared is not None:
                shared.lock.release()
            if child:
                # Threads do not survive a fork.
                self._shared = self._thread = None
                self._is_polling = False

        return after


def _serve(shared: _Shared, connect: Connect) -> None:
    while True:
        # This order guarantees that a concurrent `set_polling` call is noticed here or sees the sleeping thread.
        shared.asleep = True
        shared.asleep = not shared.is_polling
        try:
            remaining = shared.polled_at + shared.interval - time.monotonic()
            job = shared.queue.get(timeout=None if shared.asleep else max(remaining, 0))
        except Empty:
            job = _NO_WORK
        if job is None:
            break
        work, failed = job
        if job is _NO_WORK and not shared.reopen and not shared.is_poll_due:
            # Acquiring the lock without need would make `borrow` fail.
            continue
        with shared.lock:
            try:
                if shared.connection is None and (job is not _NO_WORK or shared.reopen):
                    shared.connection = connect()
                if shared.connection is not None:
                    work(shared.connection)
            except Exception as error:
                failed(error)
            if job is not _NO_WORK:
                shared.unfinished.popleft()
            if shared.is_poll_due:
                shared.polled_at = time.monotonic()
                if shared.poll is not None and shared.connection is not None:
                    shared.poll(shared.connection)
        # Release the job's references before waiting for the next job.
        del job, work, failed
    with shared.lock:
        shared.close()


_NO_WORK: tuple[Work, Callable[[Exception], None]] = (lambda connection: None, lambda error: None)


def _check_process(shared: _Shared) -> None:
    """Check that the current process opened the connection.

    Raises:
        EventLogError: If the process was forked without Python's fork hooks.
    """
    if shared.pid != os.getpid():
        raise EventLogError(
            f"This process was forked from {shared.pid} without os.fork while the event log was open. SQLite "
            "connections cannot be used after a fork. Create the log after the fork.",
            retryable=False,
        )


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()

_FORK_LOCK = threading.Lock()

_fork_callbacks: list[Callable[[bool], None]] = []


def _before_fork() -> None:
    _FORK_LOCK.acquire()
    _fork_callbacks[:] = [worker.before_fork() for worker in list(_WORKERS)]


def _after_fork(child: bool) -> None:
    for after in _fork_callbacks:
        after(child)
    _fork_callbacks.clear()
    _FORK_LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
