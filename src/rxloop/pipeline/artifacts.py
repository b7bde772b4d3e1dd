"""`ctx.artifacts`: the files of a conversation, as tools and operators write and read them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from weakref import WeakValueDictionary

from rxloop.errors import ArtifactError
from rxloop.pipeline.artifact_rules import ArtifactChunk, ArtifactRecord, safe_id, version_of
from rxloop.protocol.events import ArtifactUpdateEvent, Event
from rxloop.protocol.json_data import replace_surrogates

CHUNK = 64_000
"""Characters or bytes of a chunk: what is longer becomes several. The same in each attempt, or keys would not match."""
INLINE = 1_000_000
"""Bytes of a version that are on the stream; of what lies behind them events tell the place, and the store has it."""
_NAME = 200


@runtime_checkable
class ArtifactStore(Protocol):
    """Keeps artifacts, the files that runs make: by conversation and id, in versions that are only ever appended to.

    Each write is made as a whole or not at all, and has a key. A write whose key the artifact has already is not made
    again: it gives what the first one gave, and an `ArtifactError` if it writes something else. The rules are functions
    in `rxloop.pipeline.artifact_rules`.
    """

    async def create(
        self,
        context_id: str,
        artifact_id: str,
        *,
        name: str,
        media_type: str,
        override: bool,
        key: str,
        now: int,
    ) -> ArtifactRecord:
        """Begin an artifact, or with `override` its next version, without content.

        Args:
            context_id: The conversation, whose artifacts no other one sees.
            artifact_id: A name that is safe for a file.
            name: What people call it.
            media_type: Such as `text/markdown`.
            override: Begin the next version, if there is one; the time of the first version stays that of all.
            key: Tells this write from others, the same each time that it is tried.
            now: Milliseconds since 1970.

        Raises:
            ArtifactExists: There is one, and no `override`.
        """
        ...

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk to the newest version, which has to be `version` if that is given.

        Args:
            context_id: The conversation.
            artifact_id: The artifact.
            data: The chunk; may be empty where it is the last.
            version: The version that is meant; None for the newest.
            last: The version is complete with it.
            key: As for `create`.
            now: Milliseconds since 1970.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: It is complete, or begun anew.
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
        """Read a range of a version, by default the newest: up to `limit` bytes from `offset`, none beyond the end.

        Raises:
            UnknownArtifact: There is none.
        """
        ...

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List the versions of an artifact, the newest last; none if there is no such artifact."""
        ...

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the newest version of each artifact of a conversation, by id."""
        ...

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact with all its versions, and return whether it was deleted.

        The id is free afterwards: the next artifact of this id begins with version 1, and may use the same keys.

        Args:
            context_id: The conversation.
            artifact_id: The artifact.
            expected: Delete the artifact only if its newest version still equals this record, so that the caller does
                not delete what another writer has appended since.
        """
        ...

    async def aclose(self) -> None:
        """Close files and connections; may be called more than once."""
        ...


class Artifacts:
    """The artifacts of one conversation, to read.

    Args:
        store: Keeps them.
        context_id: The conversation.
    """

    def __init__(self, store: ArtifactStore, context_id: str) -> None:
        self._store = store
        self._context_id = context_id

    async def list(self) -> Sequence[ArtifactRecord]:
        """List the newest version of each artifact, by id."""
        return await self._store.list(self._context_id)

    async def versions(self, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List the versions of an artifact, the newest last; none if there is no such artifact."""
        return await self._store.versions(self._context_id, safe_id(artifact_id))

    async def record(self, artifact_id: str, *, version: int | None = None) -> ArtifactRecord:
        """Find what is known of a version, by default the newest.

        Raises:
            UnknownArtifact: There is none.
        """
        return version_of(await self.versions(artifact_id), artifact_id, version)

    async def read(
        self, artifact_id: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> bytes:
        """Read an artifact, or a part of it.

        Args:
            artifact_id: The artifact.
            offset: The first byte.
            limit: How many bytes at most; None for all.
            version: None for the newest.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: The range is none, or the store failed.
        """
        return await self._store.read(
            self._context_id, safe_id(artifact_id), version=version, offset=offset, limit=limit
        )


class Writes:
    """What the writes of one attempt share: where they go, how many each call has made, and who waits for whom.

    Args:
        store: Where they go.
        given: Whether the agent was given the store, and does not have it by itself.
    """

    def __init__(self, store: ArtifactStore, *, given: bool = False) -> None:
        self.store = store
        self.given = given
        self._made: Counter[tuple[str, str]] = Counter()
        # Kept by those who hold it or wait for it.
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def key(self, writer: str, artifact_id: str) -> str:
        """Name the next write of somebody to an artifact, the same in each attempt."""
        self._made[writer, artifact_id] += 1
        return f"{writer}/{self._made[writer, artifact_id]}"

    def turn(self, artifact_id: str) -> asyncio.Lock:
        """The queue of those who write one artifact, in the order in which they came."""
        return self._queues.setdefault(artifact_id, asyncio.Lock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes, and what is told of it."""

    name: str
    """The same in each attempt to carry out the call."""
    hidden: bool
    """The call is not for clients."""
    emit: Callable[[Event], None]
    now: Callable[[], int]
    """Milliseconds since 1970."""
    ready: Callable[[], Awaitable[object]] | None = None
    """Waits until the model has asked for the call, where it was started early: what is voided leaves no trace."""


class RunArtifacts(Artifacts):
    """The artifacts of the conversation of a run, to write and to read.

    Writes to one artifact are made in the order in which they are asked for, those to different ones side by side. A
    call that is made again after a crash writes nothing twice: its n-th write to an artifact is known by the call
    and by n.

    Args:
        writes: What all writes of the attempt share.
        context_id: The conversation.
        writer: Who writes.
    """

    def __init__(self, writes: Writes, context_id: str, writer: Writer) -> None:
        super().__init__(writes.store, context_id)
        self._writes = writes
        self._writer = writer

    async def create(
        self, artifact_id: str, *, name: str | None = None, media_type: str = "text/plain", override: bool = False
    ) -> Draft:
        """Begin an artifact, without content.

        Args:
            artifact_id: A plain name, such as `report.md`.
            name: What people call it; by default its id.
            media_type: What it holds.
            override: Begin its next version, if there is one of that id.

        Raises:
            ArtifactExists: There is one of that id, and no `override`.
            ArtifactError: The id is not a plain name, or the store failed.
        """
        artifact_id = safe_id(artifact_id)
        key = await self._key(artifact_id)
        async with self._writes.turn(artifact_id):
            record = await self._store.create(
                self._context_id,
                artifact_id,
                name=_line(artifact_id if name is None else name, "name"),
                media_type=_line(media_type, "media_type"),
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
        """Append to an artifact; an `artifact-update` follows each chunk that is written.

        Args:
            artifact_id: The artifact.
            data: A text, which is written as UTF-8, or bytes. What is longer than a chunk becomes several, each of them
                written as a whole.
            last: The artifact is complete with it; empty data does nothing else.
            version: The version that is meant; None for the newest.
            inline: Put the first million bytes on the stream, and not only where they are.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: It is complete, or begun anew, or the store failed. The chunks before this one stand.
        """
        artifact_id = safe_id(artifact_id)
        key = await self._key(artifact_id)
        if not isinstance(data, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArtifactError(f"an artifact takes a text or bytes, and not {type(data).__qualname__}")
        if isinstance(data, str):
            data = replace_surrogates(data)
        async with self._writes.turn(artifact_id):
            for place, (piece, is_last) in enumerate(_chunks(data, last)):
                encoded = piece if isinstance(piece, bytes) else piece.encode()
                chunk = await self._store.append(
                    self._context_id,
                    artifact_id,
                    encoded,
                    version=version,
                    last=is_last,
                    key=f"{key}.{place}",
                    now=self._writer.now(),
                )
                inlined = inline and chunk.offset + len(encoded) <= INLINE
                self._writer.emit(
                    _update(chunk, piece if inlined else None, len(encoded), is_last, self._writer.hidden)
                )
                # Some stores wait for nothing, and a large text would hold up all other runs.
                await asyncio.sleep(0)

    async def _key(self, artifact_id: str) -> str:
        key = self._writes.key(self._writer.name, artifact_id)
        if self._writer.ready is not None:
            await self._writer.ready()
        return key


class Draft:
    """An artifact that is being written: one version of it.

    Attributes:
        artifact_id: Its id, in normal form.
        version: The version that was begun.
    """

    def __init__(self, record: ArtifactRecord, artifacts: RunArtifacts) -> None:
        self.artifact_id = record.artifact_id
        self.version = record.version
        self._artifacts = artifacts

    def __repr__(self) -> str:
        return f"<Draft {self.artifact_id} version {self.version}>"

    async def append(self, data: str | bytes, *, last: bool = False) -> None:
        """Append to this version, as `ctx.artifacts.append` does.

        Raises:
            ArtifactError: It is complete, or begun anew, or the store failed.
        """
        await self._artifacts.append(self.artifact_id, data, last=last, version=self.version)


def _chunks(data: str | bytes, last: bool) -> Iterator[tuple[str | bytes, bool]]:
    """Cut data into chunks, and tell of each whether it is the last of all."""
    if not data and last:
        yield data, True
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK], last and start + CHUNK >= len(data)


def _update(chunk: ArtifactChunk, data: str | bytes | None, size: int, last: bool, hidden: bool) -> ArtifactUpdateEvent:
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


def _line(text: str, what: str) -> str:
    """Check a text for people: one line that is not too long.

    Raises:
        ArtifactError: It is not.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _NAME or not text.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(f"the {what} of an artifact is one line of up to {_NAME} characters, not {text!r:.100}")
    return text
