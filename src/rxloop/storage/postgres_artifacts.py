"""Postgres artifact store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rxloop.pipeline.artifact_rules import (
    ArtifactChunk,
    ArtifactRecord,
    check_open,
    check_range,
    find_version,
    make_key_conflict_error,
    make_unknown_artifact_error,
    next_version,
    normalize_id,
)
from rxloop.storage.postgres import psycopg
from rxloop.storage.postgres.address import Address, Connection, Row
from rxloop.storage.postgres.engine import Engines

T = TypeVar("T")

_RECORD = "artifact_id, version, name, media_type, created, updated, size, chunks, complete"

_VERSIONS = f"SELECT {_RECORD} FROM $s.artifacts WHERE context_id = %s AND artifact_id = %s ORDER BY version"

_LOCK = "SELECT FROM $s.artifacts WHERE context_id = %s AND artifact_id = %s ORDER BY version FOR UPDATE"

_WRITTEN = """
SELECT artifact, position, start, data FROM $s.artifact_chunks AS c JOIN $s.artifacts ON artifact = number
WHERE context_id = %s AND artifact_id = %s AND c.key = %s
"""

# The range starts in the last chunk that begins at or before the offset.
_RANGE = """
SELECT start, data FROM $s.artifact_chunks JOIN $s.artifacts ON artifact = number
WHERE context_id = %s AND artifact_id = %s AND version = %s AND start < %s AND start >= (
    SELECT coalesce(max(start), 0) FROM $s.artifact_chunks WHERE artifact = number AND start <= %s
) ORDER BY position
"""

_DELETE = """
WITH deleted AS (DELETE FROM $s.artifacts WHERE context_id = %s AND artifact_id = %s RETURNING number)
DELETE FROM $s.artifact_chunks WHERE artifact IN (SELECT number FROM deleted)
"""


class PostgresArtifacts:
    """Artifact store in a Postgres database, using the tables `artifacts` and `artifact_chunks`.

    A `PostgresEventLog` creates its own artifact store in its schema. Several processes may use the tables
    concurrently.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=PostgresArtifacts("postgresql://db/app"))
    """

    def __init__(
        self, dsn: str, *, session_dsn: str | None = None, schema: str = "rxloop", timeout: float = 10
    ) -> None:
        """Create a store without connecting.

        Args:
            dsn: Database URL, as in `PostgresEventLog`.
            session_dsn: Database URL that bypasses PgBouncer, as in `PostgresEventLog`.
            schema: Schema of the tables.
            timeout: Maximum time in seconds to retry while the server is unreachable.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        self._use(Engines(Address(dsn, session_dsn or dsn, schema), retry_seconds=timeout), own=True)

    @classmethod
    def from_engines(cls, engines: Engines) -> PostgresArtifacts:
        """Create a store using existing connections."""
        store = cls.__new__(cls)
        store._use(engines, own=False)
        return store

    def _use(self, engines: Engines, *, own: bool) -> None:
        self._engines, self._own, self._address = engines, own, engines.address

    def __repr__(self) -> str:
        return f"<PostgresArtifacts {self._address}>"

    async def create(
        self, context_id: str, artifact_id: str, *, name: str, media_type: str, override: bool, key: str, now: int
    ) -> ArtifactRecord:
        """Create an artifact or a new version, implementing `ArtifactStore.create`.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the ID is not a plain name.
            EventLogError: If the database write failed.
        """
        artifact_id = normalize_id(artifact_id)
        query = f"SELECT {_RECORD}, key FROM $s.artifacts WHERE context_id = %s AND artifact_id = %s ORDER BY version"

        async def work(connection: Connection) -> ArtifactRecord:
            rows = await self._fetch(connection, query, context_id, artifact_id)
            records = {row[-1]: ArtifactRecord(*row[:-1]) for row in rows}
            if key in records:
                return records[key]
            first = ArtifactRecord(artifact_id, 1, name, media_type, now, now)
            record = next_version([*records.values()], first, override)
            await connection.execute(
                self._address.sql(
                    "INSERT INTO $s.artifacts (context_id, artifact_id, version, name, media_type, created, updated,"
                    " size, chunks, complete, key) VALUES (%s, %s, %s, %s, %s, %s, %s, 0, 0, false, %s)"
                ),
                (context_id, artifact_id, record.version, name, media_type, record.created, now, key),
            )
            return record

        return await self._lock_and_run(context_id, artifact_id, work)

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk, implementing `ArtifactStore.append`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the artifact is complete or has a newer version, or if the key was used for another chunk.
            EventLogError: If the database write failed.
        """
        artifact_id = normalize_id(artifact_id)

        async def work(connection: Connection) -> ArtifactChunk:
            for number, index, start, stored in await self._fetch(connection, _WRITTEN, context_id, artifact_id, key):
                if stored != data:
                    raise make_key_conflict_error(artifact_id)
                return ArtifactChunk(await self._read_record(connection, number), index, start)
            newest_rows = await self._fetch(
                connection,
                "SELECT number FROM $s.artifacts WHERE context_id = %s AND artifact_id = %s"
                " ORDER BY version DESC LIMIT 1",
                *(context_id, artifact_id),
            )
            if not newest_rows:
                raise make_unknown_artifact_error(artifact_id)
            [[number]] = newest_rows
            before = await self._read_record(connection, number)
            check_open(before, version)
            await connection.execute(
                self._address.sql(
                    "INSERT INTO $s.artifact_chunks (artifact, position, start, key, data) VALUES (%s, %s, %s, %s, %b)"
                ),
                (number, before.chunks, before.size, key, data),
            )
            await connection.execute(
                self._address.sql(
                    "UPDATE $s.artifacts SET updated = %s, size = size + %s, chunks = chunks + 1, complete = %s"
                    " WHERE number = %s"
                ),
                (now, len(data), last, number),
            )
            return ArtifactChunk(await self._read_record(connection, number), before.chunks, before.size)

        return await self._lock_and_run(context_id, artifact_id, work)

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        version: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Read a byte range of a version, implementing `ArtifactStore.read`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the range is invalid.
            EventLogError: If the database read failed.
        """
        artifact_id = normalize_id(artifact_id)
        check_range(offset, limit)

        async def work(connection: Connection) -> bytes:
            rows = await self._fetch(connection, _VERSIONS, context_id, artifact_id)
            record = find_version([ArtifactRecord(*row) for row in rows], artifact_id, version)
            end = record.size if limit is None else min(record.size, offset + limit)
            # Postgres cannot bind integers above 64 bits.
            values = (context_id, artifact_id, record.version, end, min(offset, end))
            chunks = await self._fetch(connection, _RANGE, *values)
            return b"".join(data[max(0, offset - start) : end - start] for start, data in chunks)

        return await self._engines.get().run_read(work)

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest.

        Raises:
            EventLogError: If the database read failed.
        """
        artifact_id = normalize_id(artifact_id)
        rows = await self._engines.get().run_read(
            lambda connection: self._fetch(connection, _VERSIONS, context_id, artifact_id)
        )
        return [ArtifactRecord(*row) for row in rows]

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact in a conversation, sorted by ID.

        Raises:
            EventLogError: If the database read failed.
        """
        query = (
            f"SELECT DISTINCT ON (artifact_id) {_RECORD} FROM $s.artifacts WHERE context_id = %s"
            " ORDER BY artifact_id, version DESC"
        )
        rows = await self._engines.get().run_read(lambda connection: self._fetch(connection, query, context_id))
        # Sort in Python, so that the order does not depend on the database collation.
        return sorted((ArtifactRecord(*row) for row in rows), key=lambda record: record.artifact_id)

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact and its versions, implementing `ArtifactStore.delete`.

        Raises:
            EventLogError: If the database write failed.
        """
        artifact_id = normalize_id(artifact_id)

        async def work(connection: Connection) -> bool:
            rows = await self._fetch(connection, _VERSIONS, context_id, artifact_id)
            if not rows or expected not in (None, ArtifactRecord(*rows[-1])):
                return False
            await connection.execute(self._address.sql(_DELETE), (context_id, artifact_id))
            return True

        return await self._lock_and_run(context_id, artifact_id, work)

    async def aclose(self) -> None:
        """Close the connections. This method is idempotent, and later calls reconnect."""
        if self._own:
            await self._engines.aclose()

    async def _lock_and_run(self, context_id: str, artifact_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Call `work` in a transaction that locks all versions of the artifact.

        Advisory locks are not used, because any role with access to the database can hold them.
        """

        async def write(connection: Connection) -> T:
            while True:
                try:
                    async with connection.transaction():
                        await connection.execute(self._address.sql(_LOCK), (context_id, artifact_id))
                        return await work(connection)
                except psycopg.errors.UniqueViolation:
                    # Another process has just created the first version, so there was no row to lock.
                    continue

        return await self._engines.get().run_write(write)

    async def _read_record(self, connection: Connection, number: int) -> ArtifactRecord:
        [row] = await self._fetch(connection, f"SELECT {_RECORD} FROM $s.artifacts WHERE number = %s", number)
        return ArtifactRecord(*row)

    async def _fetch(self, connection: Connection, query: str, *values: object) -> Sequence[Row]:
        return await (await connection.execute(self._address.sql(query), values, binary=True)).fetchall()
