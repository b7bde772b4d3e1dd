"""In-memory artifact store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

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


@dataclass(slots=True)
class _Version:
    record: ArtifactRecord
    key: str
    content: bytearray = field(default_factory=bytearray)
    chunks: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """Chunk index, start offset and end offset by write key."""


class MemoryArtifacts:
    """Artifact store in memory, safe to share between tasks and threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._contexts: dict[str, dict[str, list[_Version]]] = {}

    def __repr__(self) -> str:
        return f"<MemoryArtifacts of {sum(map(len, self._contexts.values()))} artifacts>"

    async def create(
        self, context_id: str, artifact_id: str, *, name: str, media_type: str, override: bool, key: str, now: int
    ) -> ArtifactRecord:
        """Create an artifact or a new version, implementing `ArtifactStore.create`.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the ID is not a plain name.
        """
        artifact_id = normalize_id(artifact_id)
        with self._lock:
            versions = self._contexts.setdefault(context_id, {}).setdefault(artifact_id, [])
            for version in versions:
                if version.key == key:
                    return version.record
            first = ArtifactRecord(artifact_id, 1, name, media_type, now, now)
            record = next_version([version.record for version in versions], first, override)
            versions.append(_Version(record, key))
            return record

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk, implementing `ArtifactStore.append`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the artifact is complete or has a newer version, or if the key was used for another chunk.
        """
        with self._lock:
            versions = self._versions(context_id, artifact_id)
            for entry in versions:
                if (artifacts := entry.chunks.get(key)) is not None:
                    index, start, end = artifacts
                    if bytes(entry.content[start:end]) != data:
                        raise make_key_conflict_error(artifact_id)
                    return ArtifactChunk(entry.record, index, start)
            if not versions:
                raise make_unknown_artifact_error(artifact_id)
            entry = versions[-1]
            check_open(entry.record, version)
            index, start = entry.record.chunks, entry.record.size
            entry.content += data
            entry.chunks[key] = (index, start, len(entry.content))
            entry.record = replace(entry.record, updated=now, size=len(entry.content), chunks=index + 1, complete=last)
            return ArtifactChunk(entry.record, index, start)

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
        """
        check_range(offset, limit)
        with self._lock:
            versions = self._versions(context_id, artifact_id)
            record = find_version([entry.record for entry in versions], artifact_id, version)
            content = memoryview(versions[record.version - 1].content)
            try:
                return bytes(content[offset : None if limit is None else offset + limit])
            finally:
                content.release()

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest."""
        with self._lock:
            return [entry.record for entry in self._versions(context_id, artifact_id)]

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact in a conversation, sorted by ID."""
        with self._lock:
            artifacts = self._contexts.get(context_id, {})
            return [artifacts[artifact_id][-1].record for artifact_id in sorted(artifacts)]

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact and its versions, implementing `ArtifactStore.delete`."""
        with self._lock:
            versions = self._versions(context_id, artifact_id)
            if not versions or expected not in (None, versions[-1].record):
                return False
            artifacts = self._contexts[context_id]
            del artifacts[normalize_id(artifact_id)]
            if not artifacts:
                del self._contexts[context_id]
            return True

    async def aclose(self) -> None:
        """Do nothing, because the store holds no resources."""

    def _versions(self, context_id: str, artifact_id: str) -> list[_Version]:
        return self._contexts.get(context_id, {}).get(normalize_id(artifact_id), [])
