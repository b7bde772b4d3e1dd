"""Leases, heartbeat, dead processes."""

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
    """What the system says of a process."""

    state: str
    started: str
    """When it was started, so that a later process with the same number is told from it."""


def this_process() -> str:
    """Name this process as no other one is named, before or after it; empty where the system gives no such name."""
    machine, pid = _machine(), os.getpid()
    listed = _listed(pid)
    return f"{machine} {pid} {listed.started if listed else '?'}" if machine else ""


def has_died(process: str) -> bool:
    """Tell whether a process has certainly died. One that cannot be seen from here, as in another container, has not.

    Args:
        process: What `this_process` gave there.
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
        # It is another user's, and there.
        pass
    listed = _listed(pid)
    # What has ended is listed until its parent has asked for it.
    return listed is not None and (listed.state in ("Z", "X") or listed.started != started)


@cache
def _machine() -> str:
    """Name what the numbers of processes are valid in: the machine since its start, and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"mac.{os.uname().nodename}" if sys.platform == "darwin" else ""


def _listed(pid: int) -> _Listed | None:
    try:
        # The name of the program may have spaces and brackets in it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _Listed(fields[0], fields[19])
    except (OSError, IndexError):
        return None


clock = time.monotonic

_LIFE = "process, beat, lease"
"""The columns that `_alive` takes; all of them are null for a holder that is not there."""


@dataclass(slots=True, eq=False)
class Turn:
    """The turn of a run in its conversation."""

    context_id: str
    task_id: str
    lost: Callable[[], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Turns:
    """The turns of one log object in one process, which is one holder. Used by whoever has the connection."""

    def __init__(self, lease: float) -> None:
        """Hold nothing.

        Args:
            lease: Seconds after its last beat for which the holder is taken for alive.
        """
        self.lease = lease
        self._token, self._pid = secrets.token_hex(8), os.getpid()
        self._held: dict[str, Turn] = {}

    @property
    def held(self) -> dict[str, Turn]:
        """The turns, by their conversations."""
        self._here()
        return self._held

    @property
    def holder(self) -> str:
        """What this log object is called in the file."""
        self._here()
        return self._token

    def take(self, connection: sqlite3.Connection, turn: Turn, wait: float | None = None) -> bool:
        """Take a turn, unless it has a living holder; `wait` as for `transaction`."""
        held = self.held.get(turn.context_id)
        if held is not None and not held.loop.is_closed():
            return False
        asked = clock()
        # Who does not wait may ask again and again, and is not to keep the holder from its beat by that.
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
        """Whether somebody else has a turn and is alive, for who has asked at that time."""
        now = clock()
        query = f"SELECT turns.holder, {_LIFE} FROM turns LEFT JOIN holders USING (holder) WHERE context_id = ?"
        found = connection.execute(query, (context_id,)).fetchone()
        if found is None or found[0] == self.holder:
            return False
        _, process, beat, lease = found
        # While a third one kept the file to itself, nobody could write a beat.
        held_up = now - asked > self.lease / 4
        return _alive(process, beat, inf if held_up else lease, now, has_died)

    def has(self, connection: sqlite3.Connection, context_id: str, task_id: str) -> bool:
        """Whether a turn is still here; then it is for another lease."""
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
        """Give a turn back; one that is lost already is passed over. `wait` as for `transaction`.

        If the file cannot be written now, the next beat makes the turn free, or the next one that is missing. One that
        somebody else has for a moment is to be asked again, if that was not waited for.
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
        """Say that the holder is alive, and find out which turns somebody else has taken meanwhile."""
        if not self.held:
            return
        for turn in [turn for turn in self.held.values() if turn.loop.is_closed()]:
            # Nobody is there to give it back.
            del self.held[turn.context_id]
        try:
            with transaction(connection, wait=self.lease / 4):
                self._beat(connection, clock())
                query = "SELECT context_id, task_id FROM turns WHERE holder = ?"
                found = dict[str, str](connection.execute(query, (self.holder,)).fetchall())
                given_up = [(context_id, self.holder) for context_id in found if context_id not in self.held]
                connection.executemany("DELETE FROM turns WHERE context_id = ? AND holder = ?", given_up)
        except sqlite3.Error:
            # Nobody can take a turn of a file that cannot be written; whoever appends to it gets the error.
            return
        for turn in list(self.held.values()):
            if found.get(turn.context_id) != turn.task_id:
                del self.held[turn.context_id]
                # Its loop may be closed by now.
                with suppress(RuntimeError):
                    turn.loop.call_soon_threadsafe(turn.lost)

    def fenced(self, context_id: str, task_id: str, run: str | None, holder: str | None) -> Fenced | None:
        """Why this log object may not append to a run: its turn is somebody else's.

        Args:
            context_id: The conversation.
            task_id: The run.
            run: The one that has the turn, as it is read in the transaction that appends.
            holder: Who has it.
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
            # The turns are those of the process that was forked.
            self._token, self._pid, self._held = secrets.token_hex(8), os.getpid(), {}

    def _beat(self, connection: sqlite3.Connection, now: float) -> bool:
        """Write the beat; give whether it is the first one."""
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
"""The number of the last letter that a run has taken."""

_MAILED = f"""
    SELECT number FROM runs
    WHERE state IN ('input-required', 'auth-required') AND state NOT IN ('completed', 'failed') AND at_rest = 1
    AND EXISTS (
        SELECT 1 FROM mail WHERE run = runs.number AND CASE WHEN json_valid(CAST(json AS TEXT))
            THEN json_extract(CAST(json AS TEXT), '$.kind') <> 'say' END
        AND +mail.number > ({_TAKEN})
    )
"""
# The plus: as a range of the index, what was taken would be looked for without any mail, too.
"""The runs that wait, and have a letter that brings them on, such as an answer."""

_SUBMITTED = """
    SELECT number FROM runs WHERE at_rest = 0 AND state = 'submitted' AND (arrived <= ? OR arrived > ?)
    AND number > ifnull((SELECT number FROM runs WHERE task_id = ?), 0)
    AND NOT EXISTS (SELECT 1 FROM turns WHERE context_id = runs.context_id AND task_id = runs.task_id)
    ORDER BY number LIMIT ?
"""
"""The runs that were submitted before a time, or, as if later than now, before the machine has started again."""

_BEGUN = "SELECT number FROM turns JOIN runs USING (context_id, task_id) WHERE at_rest = 0 AND state = 'submitted'"
"""The runs whose turn was taken, and that have nothing to show for it yet."""


def list_orphaned(
    connection: sqlite3.Connection, submitted_before: float, submitted_limit: int | None, submitted_after: str | None
) -> list[RunRecord]:
    """The runs to go on with that have no living holder, and those that were submitted long ago."""
    asked = clock()
    rows = connection.execute(
        f"SELECT {_LIFE}, {RECORD} FROM runs LEFT JOIN turns USING (context_id, task_id)"
        " LEFT JOIN holders USING (holder)"
        " WHERE number IN (SELECT number FROM runs WHERE at_rest = 0 AND state <> 'submitted'"
        f" UNION ALL SELECT number FROM ({_SUBMITTED}) UNION ALL {_BEGUN} UNION ALL {_MAILED}) ORDER BY number",
        (asked - submitted_before, asked, submitted_after, -1 if submitted_limit is None else submitted_limit),
    ).fetchall()
    # After the beats were read, none of which can be later then.
    now, died = clock(), cache(has_died)
    return [to_record(row) for process, beat, lease, *row in rows if not _alive(process, beat, lease, now, died)]


def _alive(process: str | None, beat: float, lease: float, now: float, died: Callable[[str], bool]) -> bool:
    """Whether a holder is alive: its row is there, its last beat is not too old, and its process has not died."""
    return process is not None and beat <= now < beat + lease and not died(process)
