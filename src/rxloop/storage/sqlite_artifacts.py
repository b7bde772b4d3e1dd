"""SQLite artifact store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeVar

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
from rxloop.storage.sqlite.database import Fsync, convert_errors, transaction
from rxloop.storage.sqlite.file import OpenFile, check_path
from rxloop.storage.sqlite.worker import Worker

T = TypeVar("T")

_RECORD = "artifact_id, version, name, media_type, created, updated, size, chunks, complete"


class SqliteArtifacts:
    """Artifact store in a SQLite file, using the tables `artifacts` and `artifact_chunks`.

    The file may also contain a `SqliteEventLog`, which creates its own artifact store. Several processes may use the
    file concurrently. The file is opened or created on first use. Statements run in a thread.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=SqliteArtifacts("app.db"))
    """

    def __init__(self, path: str | PathLike[str], *, fsync: Fsync = "normal") -> None:
        """Create a store without opening the file.

        Args:
            path: File path. The parent folder must exist.
            fsync: Durability mode, as in `SqliteEventLog`. `"full"` also protects recent writes from power loss.

        Raises:
            ConfigurationError: If `path` or `fsync` is invalid.
        """
        self.path = check_path(path, fsync, "MemoryArtifacts for artifacts in memory")
        self._file = OpenFile(self.path, fsync)
        self._worker = Worker(self._file.open, "rxloop-artifacts")

    def __repr__(self) -> str:
        return f"<SqliteArtifacts {self.path}>"

    async def create(
        self, context_id: str, artifact_id: str, *, name: str, media_type: str, override: bool, key: str, now: int
    ) -> ArtifactRecord:
        """Create an artifact or a new version, implementing `ArtifactStore.create`.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the ID is not a plain name.
            EventLogError: If the file is not writable.
        """
        artifact_id = normalize_id(artifact_id)
        query = f"SELECT {_RECORD}, key FROM artifacts WHERE context_id = ? AND artifact_id = ? ORDER BY version"

        def work(connection: sqlite3.Connection) -> ArtifactRecord:
            records = {row[-1]: _record(row[:-1]) for row in connection.execute(query, (context_id, artifact_id))}
            if key in records:
                return records[key]
            first = ArtifactRecord(artifact_id, 1, name, media_type, now, now)
            record = next_version([*records.values()], first, override)
            connection.execute(
                "INSERT INTO artifacts (context_id, artifact_id, version, name, media_type, created, updated, size,"
                " chunks, complete, key) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)",
                (context_id, artifact_id, record.version, name, media_type, record.created, now, key),
            )
            return record

        return await self._run_write(work)

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk, implementing `ArtifactStore.append`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the artifact is complete or has a newer version, or if the key was used for another chunk.
            EventLogError: If the file is not writable.
        """
        artifact_id = normalize_id(artifact_id)

        def work(connection: sqlite3.Connection) -> ArtifactChunk:
            written = _find_written(connection, context_id, artifact_id, data, key)
            if written is not None:
                return written
            newest = (
                "SELECT number FROM artifacts WHERE context_id = ? AND artifact_id = ? ORDER BY version DESC LIMIT 1"
            )
            row = connection.execute(newest, (context_id, artifact_id)).fetchone()
            if row is None:
                raise make_unknown_artifact_error(artifact_id)
            before = _record(_read_row(connection, row[0]))
            check_open(before, version)
            connection.execute(
                "INSERT INTO artifact_chunks (artifact, position, start, key, data) VALUES (?, ?, ?, ?, ?)",
                (row[0], before.chunks, before.size, key, data),
            )
            connection.execute(
                "UPDATE artifacts SET updated = ?, size = size + ?, chunks = chunks + 1, complete = ? WHERE number = ?",
                (now, len(data), last, row[0]),
            )
            return ArtifactChunk(_record(_read_row(connection, row[0])), before.chunks, before.size)

        return await self._run_write(work)

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
            EventLogError: If the file is not readable.
        """
        artifact_id = normalize_id(artifact_id)
        check_range(offset, limit)
        # The range starts in the last chunk that begins at or before the offset.
        query = (
            "SELECT start, data FROM artifact_chunks JOIN artifacts ON artifact = number"
            " WHERE context_id = ? AND artifact_id = ? AND version = ? AND start < ? AND start >= ("
            "SELECT ifnull(max(start), 0) FROM artifact_chunks WHERE artifact = number AND start <= ?)"
            " ORDER BY position"
        )

        def work(connection: sqlite3.Connection) -> bytes:
            record = find_version(_read_versions(connection, context_id, artifact_id), artifact_id, version)
            end = record.size if limit is None else min(record.size, offset + limit)
            # SQLite cannot bind integers above 64 bits.
            values = (context_id, artifact_id, record.version, end, min(offset, end))
            return b"".join(
                data[max(0, offset - start) : end - start] for start, data in connection.execute(query, values)
            )

        return await self._run(work)

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest.

        Raises:
            EventLogError: If the file is not readable.
        """
        artifact_id = normalize_id(artifact_id)
        return await self._run(lambda connection: _read_versions(connection, context_id, artifact_id))

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact in a conversation, sorted by ID.

        Raises:
            EventLogError: If the file is not readable.
        """
        query = f"SELECT {_RECORD} FROM artifacts WHERE context_id = ? ORDER BY artifact_id, version"

        def work(connection: sqlite3.Connection) -> Sequence[ArtifactRecord]:
            newest = {record.artifact_id: record for record in map(_record, connection.execute(query, (context_id,)))}
            # Sort in Python, so that the order does not depend on SQLite collation.
            return [newest[artifact_id] for artifact_id in sorted(newest)]

        return await self._run(work)

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact and its versions, implementing `ArtifactStore.delete`.

        Raises:
            EventLogError: If the file is not writable.
        """
        artifact_id = normalize_id(artifact_id)
        own = (context_id, artifact_id)

        def work(connection: sqlite3.Connection) -> bool:
            versions = _read_versions(connection, context_id, artifact_id)
            if not versions or expected not in (None, versions[-1]):
                return False
            numbers = "SELECT number FROM artifacts WHERE context_id = ? AND artifact_id = ?"
            connection.execute(f"DELETE FROM artifact_chunks WHERE artifact IN ({numbers})", own)
            connection.execute("DELETE FROM artifacts WHERE context_id = ? AND artifact_id = ?", own)
            return True

        return await self._run_write(work)

    async def aclose(self) -> None:
        """Close the file. This method is idempotent, and later calls reopen the file."""
        await self._worker.aclose(final_work=self._file.close)

    async def _run_write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                result = work(connection)
            if self._file.needs_checkpoint(1):
                self._file.checkpoint_wal(connection)
            return result

        return await self._run(write)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def checked(connection: sqlite3.Connection) -> T:
            self._file.check()
            with convert_errors(self.path):
                return work(connection)

        return await self._worker.run(checked)


def _record(row: Sequence[Any]) -> ArtifactRecord:
    return ArtifactRecord(*row[:-1], complete=bool(row[-1]))


def _read_row(connection: sqlite3.Connection, number: int) -> Sequence[Any]:
    return connection.execute(f"SELECT {_RECORD} FROM artifacts WHERE number = ?", (number,)).fetchone()


def _read_versions(connection: sqlite3.Connection, context_id: str, artifact_id: str) -> list[ArtifactRecord]:
    query = f"SELECT {_RECORD} FROM artifacts WHERE context_id = ? AND artifact_id = ? ORDER BY version"
    return [_record(row) for row in connection.execute(query, (context_id, artifact_id))]


def _find_written(
    connection: sqlite3.Connection, context_id: str, artifact_id: str, data: bytes, key: str
) -> ArtifactChunk | None:
    """Return the chunk stored by an earlier attempt of the same write, or None.

    Raises:
        ArtifactError: If the stored chunk has different content.
    """
    query = (
        "SELECT artifact, position, start, data FROM artifact_chunks AS c JOIN artifacts ON artifact = number"
        " WHERE context_id = ? AND artifact_id = ? AND c.key = ?"
    )
    row = connection.execute(query, (context_id, artifact_id, key)).fetchone()
    if row is None:
        return None
    if row[3] != data:
        raise make_key_conflict_error(artifact_id)
    return ArtifactChunk(_record(_read_row(connection, row[0])), row[1], row[2])
