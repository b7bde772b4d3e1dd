"""SQLite leases with heartbeats and detection of dead processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

from rxloop.errors import Fenced
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.ids import split_conversation_key
from rxloop.storage.sql_rows import RECORD, to_record
from rxloop.storage.sqlite.database import is_busy, transaction


class _ProcessStatus(NamedTuple):
    """Process state and start time from the operating system."""

    state: str
    started: str
    """Start time, which distinguishes processes with a reused PID."""


def get_process_name() -> str:
    """Return a unique name of this process, or an empty string on unsupported systems."""
    machine, pid = _get_machine(), os.getpid()
    status = _read_process(pid)
    return f"{machine} {pid} {status.started if status else '?'}" if machine else ""


def has_died(process: str) -> bool:
    """Return True if a process is known to be dead. Processes in other containers or machines are assumed to be alive.

    Args:
        process: Result of `get_process_name` in that process.
    """
    match process.split():
        case [machine, number, started] if machine == _get_machine():
            pid = int(number)
        case _:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # The process exists but belongs to another user.
        pass
    status = _read_process(pid)
    # Zombie processes are listed until their parent reaps them.
    return status is not None and (status.state in ("Z", "X") or status.started != started)


@cache
def _get_machine() -> str:
    """Return a name for the PID namespace, which includes the boot ID and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"mac.{os.uname().nodename}" if sys.platform == "darwin" else ""


def _read_process(pid: int) -> _ProcessStatus | None:
    try:
        # The program name may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _ProcessStatus(fields[0], fields[19])
    except (OSError, IndexError):
        return None


clock = time.monotonic

_HOLDER_COLUMNS = "process, heartbeat_at, lease_seconds"
"""Columns used by `_is_alive`. All are null for a missing holder."""


@dataclass(slots=True, eq=False)
class Lease:
    """Conversation lease for a run."""

    conversation: str
    task_id: str
    on_lost: Callable[[], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Leases:
    """Leases of a log object in one process. Callers must have exclusive access to the connection."""

    def __init__(self, lease: float) -> None:
        """Create the collection without leases.

        Args:
            lease: Lease duration in seconds after the last heartbeat.
        """
        self.lease = lease
        self._token, self._pid = secrets.token_hex(8), os.getpid()
        self._active: dict[str, Lease] = {}

    @property
    def active(self) -> dict[str, Lease]:
        """Held leases by conversation key."""
        self._reset_after_fork()
        return self._active

    @property
    def holder(self) -> str:
        """Holder ID of this log object."""
        self._reset_after_fork()
        return self._token

    def acquire(self, connection: sqlite3.Connection, lease: Lease, wait: float | None = None) -> bool:
        """Acquire a lease unless another live holder has it.

        Args:
            connection: SQLite connection.
            lease: The lease.
            wait: Maximum waiting time, as in `transaction`.
        """
        current = self.active.get(lease.conversation)
        if current is not None and not current.loop.is_closed():
            return False
        start = clock()
        # Callers that do not wait may retry often. Avoid a write lock here, because it could delay the holder's
        # heartbeat.
        if wait == 0 and self._is_held_elsewhere(connection, lease.conversation, start):
            return False
        with transaction(connection, wait=wait):
            now = clock()
            if self._is_held_elsewhere(connection, lease.conversation, start):
                return False
            if self._write_heartbeat(connection, now):
                connection.execute(
                    "DELETE FROM lease_holders WHERE NOT (heartbeat_at <= :now AND :now < heartbeat_at + lease_seconds)"
                    " AND holder_id NOT IN (SELECT holder_id FROM leases)",
                    {"now": now},
                )
            connection.execute(
                "INSERT OR REPLACE INTO leases (context_id, task_id, holder_id) VALUES (?, ?, ?)",
                (lease.conversation, lease.task_id, self.holder),
            )
        self.active[lease.conversation] = lease
        return True

    def _is_held_elsewhere(self, connection: sqlite3.Connection, conversation: str, start: float) -> bool:
        """Return True if another live holder has the lease. `start` is the time of the request."""
        now = clock()
        columns, source = f"leases.holder_id, {_HOLDER_COLUMNS}", "leases LEFT JOIN lease_holders USING (holder_id)"
        row = connection.execute(f"SELECT {columns} FROM {source} WHERE context_id = ?", (conversation,)).fetchone()
        if row is None or row[0] == self.holder:
            return False
        _, process, heartbeat_at, lease = row
        # If a third process kept the file locked, the holder could not write its heartbeat.
        is_delayed = now - start > self.lease / 4
        return _is_alive(process, heartbeat_at, inf if is_delayed else lease, now, has_died)

    def has(self, connection: sqlite3.Connection, conversation: str, task_id: str) -> bool:
        """Return True if the lease is still held, and renew it."""
        lease = self.active.get(conversation)
        if lease is None or lease.task_id != task_id:
            return False
        with transaction(connection):
            query = "SELECT 1 FROM leases WHERE context_id = ? AND task_id = ? AND holder_id = ?"
            row = connection.execute(query, (conversation, task_id, self.holder)).fetchone()
            if row:
                self._write_heartbeat(connection, clock())
        return row is not None

    def release(self, connection: sqlite3.Connection, lease: Lease, wait: float | None = None) -> None:
        """Release a lease, ignoring leases that were lost. See `transaction` for `wait`.

        If the file is not writable, the lease is freed by a later heartbeat, or expires without one. If the database is
        busy and the caller does not wait, the lease is kept so that the caller can retry.
        """
        if self.active.get(lease.conversation) is not lease:
            return
        keep = False
        try:
            with transaction(connection, wait=wait):
                query = "DELETE FROM leases WHERE context_id = ? AND holder_id = ?"
                connection.execute(query, (lease.conversation, self.holder))
        except sqlite3.OperationalError as error:
            keep = wait == 0 and is_busy(error)
            raise
        finally:
            if not keep:
                del self.active[lease.conversation]

    def send_heartbeat(self, connection: sqlite3.Connection) -> None:
        """Write a heartbeat and detect lost leases."""
        if not self.active:
            return
        for lease in [lease for lease in self.active.values() if lease.loop.is_closed()]:
            # Its owner can no longer release the lease.
            del self.active[lease.conversation]
        try:
            with transaction(connection, wait=self.lease / 4):
                self._write_heartbeat(connection, clock())
                query = "SELECT context_id, task_id FROM leases WHERE holder_id = ?"
                stored = dict[str, str](connection.execute(query, (self.holder,)).fetchall())
                abandoned = [(conversation, self.holder) for conversation in stored if conversation not in self.active]
                connection.executemany("DELETE FROM leases WHERE context_id = ? AND holder_id = ?", abandoned)
        except sqlite3.Error:
            # Other holders cannot acquire leases while the file is not writable. Appending raises the error.
            return
        for lease in list(self.active.values()):
            if stored.get(lease.conversation) != lease.task_id:
                del self.active[lease.conversation]
                # The owner's event loop may be closed.
                with suppress(RuntimeError):
                    lease.loop.call_soon_threadsafe(lease.on_lost)

    def check_lease(self, conversation: str, task_id: str, run: str | None, holder: str | None) -> Fenced | None:
        """Return the error if this log object has lost its lease for a run, or None.

        Args:
            conversation: Conversation key.
            task_id: Run ID.
            run: Run that has the lease, read in the appending transaction.
            holder: Holder of the lease.
        """
        own = self.active.get(conversation)
        if holder == self.holder or (run != task_id and (own is None or own.task_id != task_id)):
            return None
        context_id, _ = split_conversation_key(conversation)
        return Fenced(
            f"run {task_id}: another process holds the lease of conversation {context_id}. Nothing was written."
        )

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            # The leases belong to the parent process.
            self._token, self._pid, self._active = secrets.token_hex(8), os.getpid(), {}

    def _write_heartbeat(self, connection: sqlite3.Connection, now: float) -> bool:
        """Write the heartbeat. Return True for a new holder."""
        query = "UPDATE lease_holders SET heartbeat_at = ? WHERE holder_id = ?"
        if connection.execute(query, (now, self.holder)).rowcount:
            return False
        query = "INSERT INTO lease_holders (holder_id, process, heartbeat_at, lease_seconds) VALUES (?, ?, ?, ?)"
        connection.execute(query, (self.holder, get_process_name(), now, self.lease))
        return True


_LAST_COMMAND = """
    SELECT ifnull(max(CASE WHEN json_valid(CAST(json AS TEXT)) THEN ifnull(
        json_extract(CAST(json AS TEXT), '$.metadata.command_id'),
        json_extract(CAST(json AS TEXT), '$.metadata.mail_id')
    ) END), 0)
    FROM events WHERE run = runs.number AND sub = 0
    AND NOT (json_valid(CAST(json AS TEXT)) AND json_extract(CAST(json AS TEXT), '$.parentTaskId') IS NOT NULL)
"""
"""Number of a run's last applied command. Events of earlier versions have `mail_id`."""

_ANSWERED = f"""
    SELECT number FROM runs
    WHERE state IN ('input-required', 'auth-required') AND state NOT IN ('completed', 'failed') AND idle = 1
    AND EXISTS (
        SELECT 1 FROM commands WHERE run = runs.number AND CASE WHEN json_valid(CAST(json AS TEXT))
            THEN json_extract(CAST(json AS TEXT), '$.kind') <> 'message' END
        AND +commands.number > ({_LAST_COMMAND})
    )
"""
# The unary plus disables the index range, which would evaluate the subquery for runs without commands.
"""Waiting runs with an unapplied command that resumes them, such as an answer."""

_SUBMITTED_RUNS = """
    SELECT number FROM runs WHERE idle = 0 AND state = 'submitted' AND (inserted_at <= ? OR inserted_at > ?)
    AND number > ifnull((SELECT number FROM runs WHERE task_id = ?), 0)
    AND NOT EXISTS (SELECT 1 FROM leases WHERE context_id = runs.conversation AND task_id = runs.task_id)
    ORDER BY number LIMIT ?
"""
"""Runs submitted before a given time. Times in the future were recorded before the last boot."""

_LEASED = "SELECT number FROM leases JOIN runs USING (task_id) WHERE idle = 0 AND state = 'submitted'"
"""Runs with an acquired lease that have not written an event yet."""

_RUNS_AND_HOLDERS = """
    FROM runs
    LEFT JOIN (SELECT context_id AS conversation, task_id, holder_id FROM leases) USING (conversation, task_id)
    LEFT JOIN lease_holders USING (holder_id)
"""


def list_orphaned(
    connection: sqlite3.Connection, submitted_before: float, submitted_limit: int | None, submitted_after: str | None
) -> list[RunRecord]:
    """Return resumable runs without a live holder, including runs submitted long ago."""
    start = clock()
    rows = connection.execute(
        f"SELECT {_HOLDER_COLUMNS}, {RECORD} {_RUNS_AND_HOLDERS}"
        " WHERE number IN (SELECT number FROM runs WHERE idle = 0 AND state <> 'submitted'"
        f" UNION ALL SELECT number FROM ({_SUBMITTED_RUNS}) UNION ALL {_LEASED} UNION ALL {_ANSWERED}) ORDER BY number",
        (start - submitted_before, start, submitted_after, -1 if submitted_limit is None else submitted_limit),
    ).fetchall()
    # Read the clock after the query, so that it is later than every heartbeat.
    now, died = clock(), cache(has_died)
    return [to_record(row) for process, beat, lease, *row in rows if not _is_alive(process, beat, lease, now, died)]


def is_orphaned(connection: sqlite3.Connection, task_id: str) -> bool:
    """Return True if a working run has no live holder."""
    query = f"SELECT {_HOLDER_COLUMNS} {_RUNS_AND_HOLDERS} WHERE task_id = ? AND idle = 0 AND state = 'working'"
    rows = connection.execute(query, (task_id,)).fetchall()
    return any(not _is_alive(process, beat, lease, clock(), has_died) for process, beat, lease in rows)


def _is_alive(process: str | None, beat: float, lease: float, now: float, died: Callable[[str], bool]) -> bool:
    """Return True if the holder exists, its heartbeat is recent, and its process is not known to be dead."""
    return process is not None and beat <= now < beat + lease and not died(process)
