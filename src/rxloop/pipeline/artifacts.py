"""Artifact access for tools and operators through `ctx.artifacts`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from rxloop.errors import ArtifactError
from rxloop.pipeline.artifact_rules import ArtifactChunk, ArtifactRecord, check_line, find_version, normalize_id
from rxloop.protocol.events import ArtifactUpdateEvent, Event
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.links import find_link_fault
from rxloop.protocol.media_types import guess_media_type

CHUNK = 64_000
"""Chunk size in characters or bytes. It must not change between attempts, because write keys depend on it."""
MAX_INLINE_BYTES = 1_000_000
"""Maximum number of bytes per version to include in events. Later chunks are only referenced."""
LINK_TYPE = "text/uri-list"
"""Media type of links in the store. Their content is the URL of an external file."""


@runtime_checkable
class ArtifactStore(Protocol):
    """Interface for artifact stores. Artifacts are files identified by conversation and ID, with append-only versions.

    Writes are atomic and have a key. Repeating a write with the same key returns the original result, or raises
    `ArtifactError` if the data differs. The module `rxloop.pipeline.artifact_rules` contains shared validation
    functions.
    """

    async def create(
        self, context_id: str, artifact_id: str, *, name: str, media_type: str, override: bool, key: str, now: int
    ) -> ArtifactRecord:
        """Create an artifact without content, or a new version if `override` is True.

        Args:
            context_id: Conversation ID. Artifacts are not shared between conversations.
            artifact_id: Valid file name.
            name: Display name.
            media_type: Media type, such as `text/markdown`.
            override: Create a new version if the artifact exists. The creation time of the first version is kept.
            key: Unique write key, which must be the same for retries.
            now: Current time in milliseconds since 1970.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
        """
        ...

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk to the latest version.

        Args:
            context_id: Conversation ID.
            artifact_id: Artifact ID.
            data: Chunk. It may be empty if `last` is True.
            version: Expected version, or None for the latest.
            last: Mark the version as complete.
            key: Unique write key, as in `create`.
            now: Current time in milliseconds since 1970.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the version is complete, or is not the latest.
        """
        ...

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        version: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Read up to `limit` bytes from `offset`. The default version is the latest.

        Raises:
            UnknownArtifact: If the version does not exist.
        """
        ...

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest. The list is empty if the artifact does not exist."""
        ...

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact, sorted by ID."""
        ...

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact with all versions, and return True if it was deleted.

        Afterwards, the ID and its write keys can be used again, starting with version 1.

        Args:
            context_id: Conversation ID.
            artifact_id: Artifact ID.
            expected: Delete only if the latest version still equals this record, to preserve concurrent changes.
        """
        ...

    async def aclose(self) -> None:
        """Close files and connections. This method is idempotent."""
        ...


class Artifacts:
    """Read access to conversation artifacts.

    Args:
        store: Artifact store.
        context_id: Conversation ID.
    """

    def __init__(self, store: ArtifactStore, context_id: str) -> None:
        self._store = store
        self._context_id = context_id

    async def list(self) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact, sorted by ID."""
        return await self._store.list(self._context_id)

    async def versions(self, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest. The list is empty if the artifact does not exist."""
        return await self._store.versions(self._context_id, normalize_id(artifact_id))

    async def record(self, artifact_id: str, *, version: int | None = None) -> ArtifactRecord:
        """Return version metadata. The default version is the latest.

        Raises:
            UnknownArtifact: If the version does not exist.
        """
        return find_version(await self.versions(artifact_id), artifact_id, version)

    async def read(
        self, artifact_id: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> bytes:
        """Read an artifact or a byte range.

        Args:
            artifact_id: Artifact ID.
            offset: Start offset in bytes.
            limit: Maximum number of bytes, or None for all.
            version: Version number, or None for the latest.

        Raises:
            UnknownArtifact: If the version does not exist.
            ArtifactError: If the range is invalid, or the store fails.
        """
        return await self._store.read(
            self._context_id, normalize_id(artifact_id), version=version, offset=offset, limit=limit
        )


class Writes:
    """Shared write state for an attempt, with the store, write counters and locks.

    Args:
        store: Artifact store.
        is_configured: True if the store was passed to the agent, rather than created by default.
    """

    def __init__(self, store: ArtifactStore, *, is_configured: bool = False) -> None:
        self.store = store
        self.is_configured = is_configured
        self._counts: Counter[tuple[str, str]] = Counter()
        # Locks are kept alive by their holders and waiting tasks.
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def key(self, writer: str, artifact_id: str) -> str:
        """Return the next write key, which is identical in all attempts."""
        self._counts[writer, artifact_id] += 1
        return f"{writer}/{self._counts[writer, artifact_id]}"

    def lock(self, artifact_id: str) -> asyncio.Lock:
        """Return the FIFO lock for an artifact."""
        return self._queues.setdefault(artifact_id, asyncio.Lock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writer identity and callbacks."""

    name: str
    """Unique name, identical in all attempts."""
    hidden: bool
    """True if the call is hidden from clients."""
    emit: Callable[[Event], None]
    now: Callable[[], int]
    """Current time in milliseconds since 1970."""
    ready: Callable[[], Awaitable[object]] | None = None
    """Function to delay writes until the model has requested a call that was started early."""


class RunArtifacts(Artifacts):
    """Read and write access to conversation artifacts, within a run.

    Writes to an artifact are executed in order, and writes to different artifacts concurrently. If a call is repeated
    after a crash, existing writes are skipped. Each write is identified by its call and its sequence number.

    Args:
        writes: Shared write state for the attempt.
        context_id: Conversation ID.
        writer: Identity of the writer.
    """

    def __init__(self, writes: Writes, context_id: str, writer: Writer) -> None:
        super().__init__(writes.store, context_id)
        self._writes = writes
        self._writer = writer

    async def create(
        self, artifact_id: str, *, name: str | None = None, media_type: str = "text/plain", override: bool = False
    ) -> Draft:
        """Create an artifact without content.

        Args:
            artifact_id: Valid file name, such as `report.md`.
            name: Display name. The default is the ID.
            media_type: Media type.
            override: Create a new version if the artifact exists.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the ID is not a valid file name, or the store fails.
        """
        artifact_id = normalize_id(artifact_id)
        key = await self._next_key(artifact_id)
        async with self._writes.lock(artifact_id):
            record = await self._store.create(
                self._context_id,
                artifact_id,
                name=check_line(artifact_id if name is None else name, "name"),
                media_type=check_line(media_type, "media_type"),
                override=override,
                key=key,
                now=self._writer.now(),
            )
        return Draft(record, self)

    async def append(
        self,
        artifact_id: str,
        data: str | bytes,
        *,
        last: bool = False,
        version: int | None = None,
        inline: bool = True,
    ) -> None:
        """Append to an artifact, emitting an `artifact-update` event for each chunk.

        Args:
            artifact_id: Artifact ID.
            data: Bytes, or text to encode as UTF-8. Large data is divided into chunks, which are written separately.
            last: Mark the version as complete. The data may be empty.
            version: Expected version, or None for the latest.
            inline: Include the first million bytes in events. Otherwise, events only contain the position.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the version is complete or is not the latest, or the store fails. Earlier chunks remain
                stored.
        """
        artifact_id = normalize_id(artifact_id)
        key = await self._next_key(artifact_id)
        if not isinstance(data, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArtifactError(f"data must be a string or bytes, got {type(data).__qualname__}")
        if isinstance(data, str):
            data = replace_surrogates(data)
        async with self._writes.lock(artifact_id):
            for index, (piece, is_last) in enumerate(_chunks(data, last)):
                encoded = piece if isinstance(piece, bytes) else piece.encode()
                chunk = await self._write(artifact_id, encoded, f"{key}.{index}", version, is_last)
                inlined = inline and chunk.offset + len(encoded) <= MAX_INLINE_BYTES
                self._writer.emit(
                    _update(chunk, piece if inlined else None, len(encoded), is_last, self._writer.hidden)
                )
                # Some stores never yield to the event loop, so large data would block other runs.
                await asyncio.sleep(0)

    async def link(
        self,
        artifact_id: str,
        url: str,
        *,
        name: str | None = None,
        media_type: str | None = None,
        override: bool = False,
    ) -> None:
        """Create an artifact that is a link to an external file, emitting an `artifact-update` event.

        The store contains the URL, with the media type `text/uri-list`. Nothing opens it.

        Args:
            artifact_id: Valid file name, such as `report.pdf`.
            url: URL with http or https and without credentials, of up to 2,000 ASCII characters.
            name: Display name. The default is the ID.
            media_type: Media type of the external file. By default, it is guessed from the URL and the ID.
            override: Create a new version if the artifact exists.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the URL is invalid, the ID is not a valid file name, or the store fails.
        """
        fault = find_link_fault(url)
        if fault is not None:
            raise ArtifactError(f"url is not a link to a file: {fault}")
        if media_type is None:
            media_type = guess_media_type(unquote(urlsplit(url).path)) or guess_media_type(artifact_id)
        else:
            media_type = check_line(media_type, "media_type")
        draft = await self.create(artifact_id, name=name, media_type=LINK_TYPE, override=override)
        key = await self._next_key(draft.artifact_id)
        async with self._writes.lock(draft.artifact_id):
            chunk = await self._write(draft.artifact_id, url.encode(), f"{key}.0", draft.version, last=True)
            update = _update(chunk, {"url": url}, len(url), last=True, hidden=self._writer.hidden)
            self._writer.emit(update.model_copy(update={"media_type": media_type}))

    async def _write(self, artifact_id: str, data: bytes, key: str, version: int | None, last: bool) -> ArtifactChunk:
        now = self._writer.now()
        return await self._store.append(
            self._context_id, artifact_id, data, version=version, last=last, key=key, now=now
        )

    async def _next_key(self, artifact_id: str) -> str:
        key = self._writes.key(self._writer.name, artifact_id)
        if self._writer.ready is not None:
            await self._writer.ready()
        return key


class Draft:
    """Artifact version that is being written.

    Attributes:
        artifact_id: Normalised artifact ID.
        version: Version number.
    """

    def __init__(self, record: ArtifactRecord, artifacts: RunArtifacts) -> None:
        self.artifact_id = record.artifact_id
        self.version = record.version
        self._artifacts = artifacts

    def __repr__(self) -> str:
        return f"<Draft {self.artifact_id} version {self.version}>"

    async def append(self, data: str | bytes, *, last: bool = False) -> None:
        """Append to this version. See `RunArtifacts.append`.

        Raises:
            ArtifactError: If the version is complete or is not the latest, or the store fails.
        """
        await self._artifacts.append(self.artifact_id, data, last=last, version=self.version)


def _chunks(data: str | bytes, last: bool) -> Iterator[tuple[str | bytes, bool]]:
    """Yield chunks with a flag for the last one."""
    if not data and last:
        yield data, True
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK], last and start + CHUNK >= len(data)


def _update(chunk: ArtifactChunk, data: Any, size: int, last: bool, hidden: bool) -> ArtifactUpdateEvent:
    record = chunk.record
    return ArtifactUpdateEvent(
        artifact_id=record.artifact_id,
        artifact_version=record.version,
        index=chunk.index,
        offset=chunk.offset,
        size=size,
        data=b64encode(data).decode() if isinstance(data, bytes) else data,
        encoding="base64" if isinstance(data, bytes) else None,
        name=record.name if chunk.index == 0 else None,
        media_type=record.media_type if chunk.index == 0 else None,
        last=last,
        hidden=hidden,
    )
