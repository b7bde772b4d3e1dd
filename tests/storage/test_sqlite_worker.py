"""Thread that runs the blocking work of a SQLite log."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rxloop.storage.sqlite.worker import Worker


class _PausingQueue:
    """Queue that blocks its reader at a certain job until `resume` is set."""

    def __init__(self, jobs: SimpleQueue[Any], pause_at: Callable[[sqlite3.Connection], None]) -> None:
        self._jobs, self._pause_at = jobs, pause_at
        self.taken, self.resume = threading.Event(), threading.Event()
        self.put = jobs.put

    def get(self, timeout: float | None = None) -> Any:
        job = self._jobs.get(timeout=timeout)
        if job is not None and job[0] is self._pause_at:
            self.taken.set()
            self.resume.wait()
        return job


async def test_borrowed_connection_does_not_overtake_a_job_of_the_thread(tmp_path: Path) -> None:
    # P25
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)

    def insert(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO jobs VALUES ('submitted')")

    worker = Worker(connect, "test")
    await worker.run(lambda connection: connection.execute("CREATE TABLE jobs (name)"))
    shared = worker._shared
    assert shared is not None
    queue = _PausingQueue(shared.queue, insert)
    shared.queue = queue  # pyright: ignore[reportAttributeAccessIssue]
    # The thread may still wait on the replaced queue and takes this job from there.
    await worker.run(lambda connection: None)
    worker.submit(insert, lambda error: None)
    queue.taken.wait()
    with worker.borrow() as connection:
        assert connection is None
    queue.resume.set()

    names = await worker.run(lambda connection: connection.execute("SELECT name FROM jobs").fetchall())
    assert names == [("submitted",)]
    await worker.aclose()


async def test_connection_can_be_borrowed_after_a_failed_job(tmp_path: Path) -> None:
    # P25
    def fail(connection: sqlite3.Connection) -> None:
        raise ValueError("the job failed")

    errors: list[str] = []
    worker = Worker(lambda: sqlite3.connect(tmp_path / "a.db", check_same_thread=False), "test")
    worker.submit(fail, lambda error: errors.append(str(error)))
    await worker.run(lambda connection: None)
    shared = worker._shared
    assert shared is not None
    # The thread decrements the counter before it releases the lock.
    with shared.lock:
        assert not shared.unfinished
    with worker.borrow() as connection:
        assert connection is not None
    assert errors == ["the job failed"]
    await worker.aclose()
