"""Thinking sessions in a SQLite file: in that of the event log, or in one of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TypeVar

from rxloop.errors import SessionConflict
from rxloop.eventlog._sqlite.database import Fsync, errors_of
from rxloop.eventlog._sqlite.file import OpenFile, checked_place
from rxloop.eventlog._sqlite.rows import transaction
from rxloop.eventlog._sqlite.worker import Worker
from rxloop.pipeline.values import SessionChange, SessionRecord

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, float | None], T]

_RECORD = "owner, session_id, version, length, created, used, state, successor"


class SqliteSessionStore:
    """Keeps thinking sessions in a SQLite file, in the table `tool_sessions` and two beside it.

    The file may be that of a `SqliteEventLog`. Any number of processes may use it at once. It is opened, or made, at
    the first use; what takes no waiting is done at once, and the rest in a thread.

    Example:
        >>> sessions = ThinkingSessions(SqliteSessionStore("runs.db"))
        >>> agent = Agent("zai:glm-4.7", tools=[sequential_thinking("planner", sessions=sessions)])
    """

    def __init__(self, path: str | PathLike[str], *, fsync: Fsync = "normal") -> None:
        """Make a store; nothing is opened yet.

        Args:
            path: The file. Its folder has to be there.
            fsync: As for `SqliteEventLog`: `"full"` guards the last moments against a loss of power as well.

        Raises:
            ConfigurationError: The path or `fsync` cannot be used.
        """
        self.path = checked_place(path, fsync, "MemorySessionStore for sessions in memory")
        self._fsync: Fsync = fsync
        self._file = OpenFile(self.path, fsync)
        self._worker = Worker(self._file.open, "rxloop-sessions")

    def __repr__(self) -> str:
        return f"<SqliteSessionStore {self.path}>"

    async def load(self, owner: str, session_id: str) -> SessionRecord | None:
        """The record of a session; None if there is none.

        Raises:
            EventLogError: The file cannot be read.
        """
        return await self._do(lambda connection, _: _load(connection, owner, session_id))

    async def entries(self, owner: str, session_id: str, *, first: int = 0) -> Sequence[bytes]:
        """The entries of a session from that one on, counted from 0.

        Raises:
            EventLogError: The file cannot be read.
        """
        query = (
            "SELECT json FROM tool_session_entries JOIN tool_sessions ON session = number"
            " WHERE owner = ? AND session_id = ? AND place >= ? ORDER BY place"
        )
        return await self._do(
            lambda connection, _: [row for (row,) in connection.execute(query, (owner, session_id, first))]
        )

    async def of_call(self, owner: str, call_id: str) -> str | None:
        """The session that a tool call has changed already.

        Raises:
            EventLogError: The file cannot be read.
        """
        query = (
            "SELECT session_id FROM tool_session_calls AS c JOIN tool_sessions ON session = number"
            " WHERE c.owner = ? AND call_id = ?"
        )

        def work(connection: sqlite3.Connection, wait: float | None) -> str | None:
            found = connection.execute(query, (owner, call_id)).fetchone()
            return None if found is None else found[0]

        return await self._do(work)

    async def commit(self, changes: Sequence[SessionChange]) -> None:
        """Make these changes in one transaction.

        Raises:
            SessionConflict: A session has another version than the one before its change.
            EventLogError: The file cannot be written.
        """

        def work(connection: sqlite3.Connection, wait: float | None) -> None:
            with transaction(connection, wait=wait):
                for change in changes:
                    _make(connection, change)

        await self._do(work, at_once=self._fsync == "normal")
        if self._file.written(1):
            self._worker.submit(self._file.move, lambda error: None)

    async def records(self, owner: str | None = None) -> Sequence[SessionRecord]:
        """All sessions, or those of an owner, the least recently used first.

        Raises:
            EventLogError: The file cannot be read.
        """
        where, values = ("", ()) if owner is None else (" WHERE owner = ?", (owner,))
        query = f"SELECT {_RECORD} FROM tool_sessions{where} ORDER BY used, number"
        return await self._do(lambda connection, _: [SessionRecord(*row) for row in connection.execute(query, values)])

    async def find(self, session_id: str) -> Sequence[SessionRecord]:
        """The records of that id, whoever they belong to.

        Raises:
            EventLogError: The file cannot be read.
        """
        query = f"SELECT {_RECORD} FROM tool_sessions WHERE session_id = ? ORDER BY number"
        return await self._do(
            lambda connection, _: [SessionRecord(*row) for row in connection.execute(query, (session_id,))]
        )

    async def delete(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Remove sessions, each named by its owner and its id.

        Raises:
            EventLogError: The file cannot be written.
        """

        def work(connection: sqlite3.Connection, wait: float | None) -> None:
            with transaction(connection, wait=wait):
                for owner, session_id in sessions:
                    found = _number(connection, owner, session_id)
                    if found is not None:
                        _empty(connection, found[0])
                        connection.execute("DELETE FROM tool_sessions WHERE number = ?", (found[0],))

        await self._do(work, at_once=False)

    async def aclose(self) -> None:
        """Close the file; may be called more than once. A store that is used again opens it again."""
        await self._worker.aclose(last=self._file.close)

    async def _do(self, work: Work[T], *, at_once: bool = True) -> T:
        """Do something with the connection: at once if it is there and nobody is in the way, else in the thread."""
        if at_once:
            with self._worker.borrowed() as connection, errors_of(self.path):
                if connection is not None:
                    self._file.check()
                    try:
                        return work(connection, 0)
                    except sqlite3.OperationalError as error:
                        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                            raise

        def patiently(connection: sqlite3.Connection) -> T:
            self._file.check()
            with errors_of(self.path):
                return work(connection, None)

        return await self._worker.do(patiently)


def _load(connection: sqlite3.Connection, owner: str, session_id: str) -> SessionRecord | None:
    query = f"SELECT {_RECORD} FROM tool_sessions WHERE owner = ? AND session_id = ?"
    row = connection.execute(query, (owner, session_id)).fetchone()
    return None if row is None else SessionRecord(*row)


def _number(connection: sqlite3.Connection, owner: str, session_id: str) -> tuple[int, int, int] | None:
    """The number, the version and the length of a session."""
    query = "SELECT number, version, length FROM tool_sessions WHERE owner = ? AND session_id = ?"
    return connection.execute(query, (owner, session_id)).fetchone()


def _make(connection: sqlite3.Connection, change: SessionChange) -> None:
    record = change.record
    found = _number(connection, record.owner, record.session_id)
    number, version, length = found or (None, 0, 0)
    if record.version != version + 1:
        raise SessionConflict(
            f"session {record.session_id!r} is at version {version}, and the change expects {record.version - 1}: "
            "another writer was first; load it again"
        )
    values = (record.version, record.length, record.used, record.state, record.successor)
    if number is None:
        number = connection.execute(
            "INSERT INTO tool_sessions (version, length, used, state, successor, owner, session_id, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, record.owner, record.session_id, record.created),
        ).lastrowid
        assert number is not None
    else:
        connection.execute(
            "UPDATE tool_sessions SET version = ?, length = ?, used = ?, state = ?, successor = ? WHERE number = ?",
            (*values, number),
        )
    if record.state in ("cleared", "expired"):
        _empty(connection, number)
    connection.executemany(
        "INSERT INTO tool_session_entries (session, place, json) VALUES (?, ?, ?)",
        [(number, length + at, entry) for at, entry in enumerate(change.entries)],
    )
    if change.call_id is not None:
        connection.execute(
            "INSERT INTO tool_session_calls (owner, call_id, session) VALUES (?, ?, ?)",
            (record.owner, change.call_id, number),
        )


def _empty(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("DELETE FROM tool_session_entries WHERE session = ?", (number,))
    connection.execute("DELETE FROM tool_session_calls WHERE session = ?", (number,))
