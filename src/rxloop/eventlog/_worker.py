"""A thread that does the blocking work of a log, one thing after the other."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from rxloop.stream.threads import in_thread

T = TypeVar("T")
Connect = Callable[[], sqlite3.Connection]
Work = Callable[[sqlite3.Connection], None]


class Answer(Generic[T]):
    """What an event loop waits for and a thread gives.

    Not `run_in_executor`, whose futures, with a lock and a condition each, cost as much as the write that they tell of.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        """Tell the value; from any thread."""
        self._tell(lambda: self.future.set_result(value))

    def fail(self, error: Exception) -> None:
        """Tell that there is none; from any thread."""
        self._tell(lambda: self.future.set_exception(error))

    def _tell(self, settle: Callable[[], None]) -> None:
        def tell() -> None:
            if not self.future.done():
                settle()

        # The loop may be closed by now.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)


class _Shared:
    """What a worker and its thread both know."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[tuple[Work, Callable[[Exception], None]] | None] = SimpleQueue()
        self.lock = threading.Lock()
        """Held by whoever uses the connection."""
        self.connection: sqlite3.Connection | None = None


class Worker:
    """A thread and its connection, both made when they are first needed, and gone with this object if not before."""

    def __init__(self, connect: Connect, name: str) -> None:
        self._connect = connect
        self._name = name
        self._shared: _Shared | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Have something done with the connection; `failed` is told what it raises, or that there is no connection."""
        if self._shared is None:
            self._shared = _Shared()
            # A daemon: at the end of the process everything that somebody waits for is done.
            self._thread = threading.Thread(
                target=_serve, args=(self._shared, self._connect), name=self._name, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._shared.queue.put, None).atexit = False
        self._shared.queue.put((work, failed))

    @contextmanager
    def borrowed(self) -> Generator[sqlite3.Connection | None]:
        """The connection, for something short that is done without the thread; None if it is not open or in use."""
        shared = self._shared
        if shared is None or not shared.queue.empty() or not shared.lock.acquire(blocking=False):
            yield None
            return
        try:
            yield shared.connection
        finally:
            shared.lock.release()

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Have something done with the connection, and wait for what it gives."""
        answer = Answer[T]()
        self.submit(lambda connection: answer.give(work(connection)), answer.fail)
        return await answer.future

    async def aclose(self) -> None:
        """Finish what is to be done, close the connection and end the thread; the next work makes new ones."""
        shared, thread = self._shared, self._thread
        self._shared = self._thread = None
        if shared is not None and thread is not None:
            shared.queue.put(None)
            await in_thread(thread.join)


def _serve(shared: _Shared, connect: Connect) -> None:
    while (job := shared.queue.get()) is not None:
        work, failed = job
        with shared.lock:
            try:
                if shared.connection is None:
                    shared.connection = connect()
                work(shared.connection)
            except Exception as error:
                failed(error)
        # What the job holds would otherwise be kept until the next one.
        del job, work, failed
    if shared.connection is not None:
        shared.connection.close()
