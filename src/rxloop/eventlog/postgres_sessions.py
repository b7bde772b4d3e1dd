"""Thinking sessions in Postgres: in the schema of the event log, or in one of their own."""

from __future__ import annotations

from collections.abc import Sequence

from rxloop.errors import SessionConflict
from rxloop.eventlog._postgres.address import Address, Connection, Row
from rxloop.eventlog._postgres.engine import Engines
from rxloop.pipeline.values import SessionChange, SessionRecord

_RECORD = "owner, session_id, version, length, created, used, state, successor"


class PostgresSessionStore:
    """Keeps thinking sessions in a Postgres database, in the table `tool_sessions` and two beside it.

    The schema may be that of a `PostgresEventLog`. Any number of processes may use it at once. It has three connections
    at most, made when they are first needed.

    Example:
        >>> sessions = ThinkingSessions(PostgresSessionStore("postgresql://app@db.internal/app"))
        >>> agent = Agent("zai:glm-4.7", tools=[sequential_thinking("planner", sessions=sessions)])
    """

    def __init__(
        self, dsn: str, *, session_dsn: str | None = None, schema: str = "rxloop", patience: float = 10
    ) -> None:
        """Make a store; nothing is connected yet.

        Args:
            dsn: The database, as for `PostgresEventLog`.
            session_dsn: The same database past a PgBouncer, as for `PostgresEventLog`.
            schema: The schema of the tables.
            patience: Seconds for which a server that cannot be reached is asked again before a call fails.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        self._address = Address(dsn, session_dsn or dsn, schema)
        self._engines = Engines(self._address, patience=patience)

    def __repr__(self) -> str:
        return f"<PostgresSessionStore {self._address}>"

    async def load(self, owner: str, session_id: str) -> SessionRecord | None:
        """The record of a session; None if there is none.

        Raises:
            EventLogError: The server cannot be read.
        """
        found = await self._rows(
            f"SELECT {_RECORD} FROM $s.tool_sessions WHERE owner = %s AND session_id = %s", owner, session_id
        )
        return SessionRecord(*found[0]) if found else None

    async def entries(self, owner: str, session_id: str, *, first: int = 0) -> Sequence[bytes]:
        """The entries of a session from that one on, counted from 0.

        Raises:
            EventLogError: The server cannot be read.
        """
        found = await self._rows(
            "SELECT json FROM $s.tool_session_entries JOIN $s.tool_sessions ON session = number"
            " WHERE owner = %s AND session_id = %s AND place >= %s ORDER BY place",
            *(owner, session_id, first),
        )
        return [json for (json,) in found]

    async def of_call(self, owner: str, call_id: str) -> str | None:
        """The session that a tool call has changed already.

        Raises:
            EventLogError: The server cannot be read.
        """
        found = await self._rows(
            "SELECT session_id FROM $s.tool_session_calls AS c JOIN $s.tool_sessions ON session = number"
            " WHERE c.owner = %s AND call_id = %s",
            *(owner, call_id),
        )
        return found[0][0] if found else None

    async def commit(self, changes: Sequence[SessionChange]) -> None:
        """Make these changes in one transaction.

        Raises:
            SessionConflict: A session has another version than the one before its change.
            EventLogError: The server cannot be written.
        """
        tries = 0

        async def work(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            async with connection.transaction():
                if tries > 1 and await _is_made(connection, self._address, changes):
                    # It was the answer that was lost.
                    return
                for change in changes:
                    await _make(connection, self._address, change)

        await self._engines.here().writing(work)

    async def records(self, owner: str | None = None) -> Sequence[SessionRecord]:
        """All sessions, or those of an owner, the least recently used first.

        Raises:
            EventLogError: The server cannot be read.
        """
        where, values = ("", ()) if owner is None else (" WHERE owner = %s", (owner,))
        found = await self._rows(f"SELECT {_RECORD} FROM $s.tool_sessions{where} ORDER BY used, number", *values)
        return [SessionRecord(*row) for row in found]

    async def find(self, session_id: str) -> Sequence[SessionRecord]:
        """The records of that id, whoever they belong to.

        Raises:
            EventLogError: The server cannot be read.
        """
        found = await self._rows(
            f"SELECT {_RECORD} FROM $s.tool_sessions WHERE session_id = %s ORDER BY number", session_id
        )
        return [SessionRecord(*row) for row in found]

    async def delete(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Remove sessions, each named by its owner and its id.

        Raises:
            EventLogError: The server cannot be written.
        """

        async def work(connection: Connection) -> None:
            query = self._address.sql(
                "DELETE FROM $s.tool_sessions WHERE (owner, session_id) = (%s, %s) RETURNING number"
            )
            async with connection.transaction():
                for session in sessions:
                    for (number,) in await (await connection.execute(query, session)).fetchall():
                        await _empty(connection, self._address, number)

        await self._engines.here().writing(work)

    async def aclose(self) -> None:
        """Close the connections; may be called more than once. A store that is used again makes others."""
        await self._engines.aclose()

    async def _rows(self, query: str, *values: object) -> list[Row]:
        async def work(connection: Connection) -> list[Row]:
            return await (await connection.execute(self._address.sql(query), values, binary=True)).fetchall()

        return await self._engines.here().reading(work)


async def _is_made(connection: Connection, address: Address, changes: Sequence[SessionChange]) -> bool:
    query = address.sql(f"SELECT {_RECORD} FROM $s.tool_sessions WHERE owner = %s AND session_id = %s")
    for change in changes:
        record = change.record
        row = await (await connection.execute(query, (record.owner, record.session_id))).fetchone()
        if row is None or SessionRecord(*row) != record:
            return False
    return True


async def _make(connection: Connection, address: Address, change: SessionChange) -> None:
    record = change.record
    query = address.sql(
        "SELECT number, version, length FROM $s.tool_sessions WHERE owner = %s AND session_id = %s FOR UPDATE"
    )
    found = await (await connection.execute(query, (record.owner, record.session_id))).fetchone()
    number, version, length = found or (None, 0, 0)
    if record.version != version + 1:
        raise _conflict(record, version)
    values = (record.version, record.length, record.used, record.state, record.successor)
    if number is None:
        query = address.sql(
            "INSERT INTO $s.tool_sessions (version, length, used, state, successor, owner, session_id, created)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (owner, session_id) DO NOTHING RETURNING number"
        )
        row = await (
            await connection.execute(query, (*values, record.owner, record.session_id, record.created))
        ).fetchone()
        if row is None:
            # Somebody made it at the same moment.
            raise _conflict(record, 1)
        number = row[0]
    else:
        query = address.sql(
            "UPDATE $s.tool_sessions SET version = %s, length = %s, used = %s, state = %s, successor = %s"
            " WHERE number = %s"
        )
        await connection.execute(query, (*values, number))
    if record.state in ("cleared", "expired"):
        await _empty(connection, address, number)
    if change.entries:
        query = address.sql("INSERT INTO $s.tool_session_entries (session, place, json) VALUES (%s, %s, %b)")
        async with connection.cursor() as cursor:
            await cursor.executemany(query, [(number, length + at, entry) for at, entry in enumerate(change.entries)])
    if change.call_id is not None:
        query = address.sql("INSERT INTO $s.tool_session_calls (owner, call_id, session) VALUES (%s, %s, %s)")
        await connection.execute(query, (record.owner, change.call_id, number))


def _conflict(record: SessionRecord, version: int) -> SessionConflict:
    return SessionConflict(
        f"session {record.session_id!r} is at version {version}, and the change expects {record.version - 1}: "
        "another writer was first; load it again"
    )


async def _empty(connection: Connection, address: Address, number: int) -> None:
    for table in ("tool_session_entries", "tool_session_calls"):
        await connection.execute(address.sql(f"DELETE FROM $s.{table} WHERE session = %s"), (number,))
