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
from rxloop.storage.sql_rows import RECORD, to_record
from rxloop.storage.sqlite.database import is_busy, transaction


class _Listed(NamedTuple):
    """Process state and start time from the operating system."""

    state: str
    started: str
    """Start time, which distinguishes processes with a reused PID."""


def this_process() -> str:
    """Return a unique name of this process, or an empty string on unsupported systems."""
    machine, pid = _machine(), os.getpid()
    listed = _listed(pid)
    return f"{machine} {pid} {listed.started if listed else '?'}" if machine else ""


def has_died(process: str) -> bool:
    """Return True if a process is known to be dead. Processes in other containers or machines are assumed to be alive.

    Args:
        process: Result of `this_process` in that process.
    """
    match process.split():
        case [machine, number, started] if machine == _machine():
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
    listed = _listed(pid)
    # Zombie processes are listed until their parent reaps them.
    return listed is not None and (listed.state in ("Z", "X") or listed.started != started)


@cache
def _machine() -> str:
    """Return a name for the PID namespace, which includes the boot ID and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"mac.{os.uname().nodename}" if sys.platform == "darwin" else ""


def _listed(pid: int) -> _Listed | None:
    try:
        # The program name may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _Listed(fields[0], fields[19])
    except (OSError, IndexError):
        return None


clock = time.monotonic

_LIFE = "process, beat, lease"
"""Columns used by `_alive`. All are null for a missing holder."""


@dataclass(slots=True, eq=False)
class Turn:
    """Conversation lease for a run."""

    context_id: str
    task_id: str
    lost: Callable[[], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Turns:
    """Leases of a log object in one process. Callers must have exclusive access to the connection."""

    def __init__(self, lease: float) -> None:
        """Create an empty collection.

        Args:
            lease: Lease duration in seconds after the last heartbeat.
        """
        self.lease = lease
        self._token, self._pid = secrets.token_hex(8), os.getpid()
        self._held: dict[str, Turn] = {}

    @property
    def held(self) -> dict[str, Turn]:
        """Held leases by conversation ID."""
        self._here()
        return self._held

    @property
    def holder(self) -> str:
        """Holder ID of this log object."""
        self._here()
        return self._token

    def take(self, connection: sqlite3.Connection, turn: Turn, wait: float | None = None) -> bool:
        """Acquire a lease unless another live holder has it.

        Args:
            connection: SQLite connection.
            turn: The lease.
            wait: Maximum waiting time, as in `transaction`.
        """
        held = self.held.get(turn.context_id)
        if held is not None and not held.loop.is_closed():
            return False
        asked = clock()
        # Callers that do not wait may retry often. Avoid a write lock here, because it could delay the holder's
        # heartbeat.
        if wait == 0 and self._is_elsewhere(connection, turn.context_id, asked):
            return False
        with transaction(connection, wait=wait):
            now = clock()
            if self._is_elsewhere(connection, turn.context_id, asked):
                return False
            if self._beat(connection, now):
                connection.execute(
                    "DELETE FROM holders WHERE NOT (beat <= :now AND :now < beat + lease)"
                    " AND holder NOT IN (SELECT holder FROM turns)",
                    {"now": now},
                )
            connection.execute(
                "INSERT OR REPLACE INTO turns (context_id, task_id, holder) VALUES (?, ?, ?)",
                (turn.context_id, turn.task_id, self.holder),
            )
        self.held[turn.context_id] = turn
        return True

    def _is_elsewhere(self, connection: sqlite3.Connection, context_id: str, asked: float) -> bool:
        """Return True if another live holder has the lease. `asked` is the time of the request."""
        now = clock()
        query = f"SELECT turns.holder, {_LIFE} FROM turns LEFT JOIN holders USING (holder) WHERE context_id = ?"
        found = connection.execute(query, (context_id,)).fetchone()
        if found is None or found[0] == self.holder:
            return False
        _, process, beat, lease = found
        # If a third process kept the file locked, the holder could not write its heartbeat.
        held_up = now - asked > self.lease / 4
        return _alive(process, beat, inf if held_up else lease, now, has_died)

    def has(self, connection: sqlite3.Connection, context_id: str, task_id: str) -> bool:
        """Return True if the lease is still held, and renew it."""
        turn = self.held.get(context_id)
        if turn is None or turn.task_id != task_id:
            return False
        with transaction(connection):
            query = "SELECT 1 FROM turns WHERE context_id = ? AND task_id = ? AND holder = ?"
            found = connection.execute(query, (context_id, task_id, self.holder)).fetchone()
            if found:
                self._beat(connection, clock())
        return found is not None

    def give_back(self, connection: sqlite3.Connection, turn: Turn, wait: float | None = None) -> None:
        """Release a lease, ignoring leases that were lost. See `transaction` for `wait`.

        If the file is not writable, the lease is freed by a later heartbeat, or expires without one. If the database is
        busy and the caller does not wait, the lease is kept so that the caller can retry.
        """
        if self.held.get(turn.context_id) is not turn:
            return
        again = False
        try:
            with transaction(connection, wait=wait):
                query = "DELETE FROM turns WHERE context_id = ? AND holder = ?"
                connection.execute(query, (turn.context_id, self.holder))
        except sqlite3.OperationalError as error:
            again = wait == 0 and is_busy(error)
            raise
        finally:
            if not again:
                del self.held[turn.context_id]

    def beat(self, connection: sqlite3.Connection) -> None:
        """Write a heartbeat and detect lost leases."""
        if not self.held:
            return
        for turn in [turn for turn in self.held.values() if turn.loop.is_closed()]:
            # Its owner can no longer release the lease.
            del self.held[turn.context_id]
        try:
            with transaction(connection, wait=self.lease / 4):
                self._beat(connection, clock())
                query = "SELECT context_id, task_id FROM turns WHERE holder = ?"
                found = dict[str, str](connection.execute(query, (self.holder,)).fetchall())
                given_up = [(context_id, self.holder) for context_id in found if context_id not in self.held]
                connection.executemany("DELETE FROM turns WHERE context_id = ? AND holder = ?", given_up)
        except sqlite3.Error:
            # Other holders cannot acquire leases while the file is not writable. Appending raises the error.
            return
        for turn in list(self.held.values()):
            if found.get(turn.context_id) != turn.task_id:
                del self.held[turn.context_id]
                # The owner's event loop may be closed.
                with suppress(RuntimeError):
                    turn.loop.call_soon_threadsafe(turn.lost)

    def fenced(self, context_id: str, task_id: str, run: str | None, holder: str | None) -> Fenced | None:
        """Return the error if this log object has lost its lease for a run, or None.

        Args:
            context_id: Conversation ID.
            task_id: Run ID.
            run: Run that has the lease, read in the appending transaction.
            holder: Holder of the lease.
        """
        mine = self.held.get(context_id)
        if holder == self.holder or (run != task_id and (mine is None or mine.task_id != task_id)):
            return None
        return Fenced(
            f"run {task_id}: somebody else has the turn of the conversation {context_id} now and goes on there; "
            "nothing was written"
        )

    def _here(self) -> None:
        if self._pid != os.getpid():
            # The leases belong to the parent process.
            self._token, self._pid, self._held = secrets.token_hex(8), os.getpid(), {}

    def _beat(self, connection: sqlite3.Connection, now: float) -> bool:
        """Write the heartbeat. Return True for a new holder."""
        query = "UPDATE holders SET beat = ? WHERE holder = ?"
        if connection.execute(query, (now, self.holder)).rowcount:
            return False
        query = "INSERT INTO holders (holder, process, beat, lease) VALUES (?, ?, ?, ?)"
        connection.execute(query, (self.holder, this_process(), now, self.lease))
        return True


_TAKEN = """
    SELECT ifnull(max(CASE WHEN json_valid(CAST(json AS TEXT))
        THEN json_extract(CAST(json AS TEXT), '$.metadata.mail_id') END), 0)
    FROM events WHERE run = runs.number AND sub = 0
    AND NOT (json_valid(CAST(json AS TEXT)) AND json_extract(CAST(json AS TEXT), '$.parentTaskId') IS NOT NULL)
"""
"""Number of a run's last applied command."""

_MAILED = f"""
    SELECT number FROM runs
    WHERE state IN ('input-required', 'auth-required') AND state NOT IN ('completed', 'failed') AND at_rest = 1
    AND EXISTS (
        SELECT 1 FROM mail WHERE run = runs.number AND CASE WHEN json_valid(CAST(json AS TEXT))
            THEN json_extract(CAST(json AS TEXT), '$.kind') <> 'say' END
        AND +mail.number > ({_TAKEN})
    )
"""
# The unary plus disables the index range, which would evaluate the subquery for runs without commands.
"""Waiting runs with an unapplied command that resumes them, such as an answer."""

_SUBMITTED = """
    SELECT number FROM runs WHERE at_rest = 0 AND state = 'submitted' AND (arrived <= ? OR arrived > ?)
    AND number > ifnull((SELECT number FROM runs WHERE task_id = ?), 0)
    AND NOT EXISTS (SELECT 1 FROM turns WHERE context_id = runs.context_id AND task_id = runs.task_id)
    ORDER BY number LIMIT ?
"""
"""Runs submitted before a given time. Times in the future were recorded before the last boot."""

_BEGUN = "SELECT number FROM turns JOIN runs USING (context_id, task_id) WHERE at_rest = 0 AND state = 'submitted'"
"""Runs with an acquired lease that have not written an event yet."""


def list_orphaned(
    connection: sqlite3.Connection, submitted_before: float, submitted_limit: int | None, submitted_after: str | None
) -> list[RunRecord]:
    """Return resumable runs without a live holder, including runs submitted long ago."""
    asked = clock()
    rows = connection.execute(
        f"SELECT {_LIFE}, {RECORD} FROM runs LEFT JOIN turns USING (context_id, task_id)"
        " LEFT JOIN holders USING (holder)"
        " WHERE number IN (SELECT number FROM runs WHERE at_rest = 0 AND state <> 'submitted'"
        f" UNION ALL SELECT number FROM ({_SUBMITTED}) UNION ALL {_BEGUN} UNION ALL {_MAILED}) ORDER BY number",
        (asked - submitted_before, asked, submitted_after, -1 if submitted_limit is None else submitted_limit),
    ).fetchall()
    # Read the clock after the query, so that it is later than every heartbeat.
    now, died = clock(), cache(has_died)
    return [to_record(row) for process, beat, lease, *row in rows if not _alive(process, beat, lease, now, died)]


def _alive(process: str | None, beat: float, lease: float, now: float, died: Callable[[str], bool]) -> bool:
    """Return True if the holder exists, its heartbeat is recent, and its process is not known to be dead."""
    return process is not None and beat <= now < beat + lease and not died(process)
