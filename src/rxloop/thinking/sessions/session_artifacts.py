"""Artifact storage and id generation for sessions."""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar
from uuid import UUID

from pydantic import ConfigDict, ValidationError

from rxloop.errors import ArtifactError, SessionConflict, UnknownArtifact
from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.protocol.model import Wire
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.thought import SequentialThought

_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_RANDOM_BITS = 62
"""Number of trailing random bits in a version 7 UUID."""


def new_id(*call: str) -> str:
    """Return a new session id, a UUID of version 7. Ids sort by time.

    Args:
        *call: Strings that identify the tool call that begins the session. All ids for one call map to the same
            artifact id, so a repeated call finds its session.
    """
    # Deferred import, because uuid6 imports importlib.metadata and slows down startup.
    import uuid6

    uuid = uuid6.uuid7()
    if not call:
        return str(uuid)
    digest = int.from_bytes(sha256(json.dumps(call).encode()).digest()[:8], "big") >> (64 - _RANDOM_BITS)
    mask = (1 << 76) - 1
    return str(UUID(int=(uuid.int & ~mask) | _mark(digest) << 64 | 0b10 << _RANDOM_BITS | digest))


def is_generated(session_id: str) -> bool:
    """Return True if the id has the format of `new_id`."""
    return _GENERATED.fullmatch(session_id.lower()) is not None


def artifact_id(owner: str, session_id: str) -> str:
    """Return the artifact id of a session.

    The artifact id of a generated session id does not depend on the owner, so programs can find the session without
    the owner. The artifact id of a chosen name is a hash of the owner and the name.
    """
    if _GENERATED.fullmatch(session_id) is None:
        return f"name-{sha256(json.dumps([owner, session_id]).encode()).hexdigest()[:40]}"
    value = UUID(session_id).int
    digest = value & ((1 << _RANDOM_BITS) - 1)
    return f"call-{digest:016x}" if value >> 64 & 0xFFF == _mark(digest) else f"id-{session_id}"


def _mark(digest: int) -> int:
    """Return the 12-bit checksum that marks an id as derived from a tool call."""
    return int.from_bytes(sha256(b"call %d" % digest).digest()[:2], "big") & 0xFFF


CONTEXT = "rxloop\x1fthinking"
"""Context id of the artifacts. Runs cannot use it, because it contains a control character."""

_CACHED = 256
"""Maximum number of cached sessions. A cached session is not read again for each thought."""

_BLOCK = 1 << 16
"""Number of bytes to read first from the end of an artifact."""

_LARGE_BYTES = 1 << 20
"""Size in bytes above which an artifact is replaced when its session is cleared or has expired."""


class SessionLine(Wire):
    """Single line of a session artifact."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    nonce: str
    """Nonce of the artifact. Readers ignore lines with another nonce, which were meant for a deleted artifact."""
    place: int
    """Line number, starting at 0."""
    write: str
    """Random write id, so that equal thoughts of two writers result in different lines."""
    begins: int | None = None
    """New version of the session, if this line starts one. Readers skip all earlier lines."""
    at: int = 0
    """Version start time in milliseconds since 1970."""
    thought: SequentialThought | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Session metadata encoded in the artifact name."""

    owner: str
    session_id: str
    nonce: str
    """Random artifact nonce. Distinguishes a recreated artifact from a deleted one with the same id."""

    @classmethod
    def of(cls, record: ArtifactRecord) -> Head | None:
        """Parse session metadata from an artifact name, returning None for other artifacts."""
        try:
            fields: dict[str, Any] = json.loads(record.name)
            return cls(fields["owner"], fields["session"], fields["nonce"])
        except (ValueError, KeyError, TypeError):
            return None

    def to_name(self) -> str:
        """Return the name of the artifact."""
        return json.dumps({"owner": self.owner, "session": self.session_id, "nonce": self.nonce})


@dataclass(frozen=True, slots=True)
class StoredSession:
    """Session along with its artifact state."""

    session: Session
    record: ArtifactRecord | None = None
    """Artifact of the session. None if the artifact does not exist yet."""
    lines: int = 0
    """Number of lines. 0 if the artifact was created but nothing was written."""
    end: int = 0
    """Artifact size at the last read, in bytes."""


class SessionArtifacts:
    """Reader and writer of session artifacts.

    The idempotency key of each write contains the line number. If two processes write the same line, the store refuses
    the second write because its content differs, and the second process gets a `SessionConflict`.

    Args:
        store: Artifact store.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store
        self._cache: OrderedDict[str, StoredSession] = OrderedDict()

    def cached(self, artifact: str) -> StoredSession | None:
        """Return the cached session of an artifact, or None."""
        return self._cache.get(artifact)

    async def find(self, artifact: str) -> StoredSession | None:
        """Read the session of an artifact. Return None if the artifact does not exist."""
        versions = await self.store.versions(CONTEXT, artifact)
        if not versions:
            self._cache.pop(artifact, None)
            return None
        return await self.read(versions[-1])

    async def list(self, owner: str | None = None) -> list[ArtifactRecord]:
        """List the session artifacts of an owner. None lists all owners."""
        heads = [(record, Head.of(record)) for record in await self.store.list(CONTEXT)]
        return [record for record, head in heads if head is not None and owner in (None, head.owner)]

    async def read(self, record: ArtifactRecord) -> StoredSession | None:
        """Read a session. Only lines that are not cached are read from the store.

        Returns:
            The session, or None if another process has deleted the artifact.

        Raises:
            SessionConflict: Another process has replaced the artifact during the read.
            ArtifactError: The artifact is damaged.
        """
        head = Head.of(record)
        if head is None:
            return None
        stored = self._cache.get(record.artifact_id)
        try:
            if stored is None or stored.record is None or stored.record.name != record.name or stored.end > record.size:
                stored = StoredSession(Session(head.session_id, head.owner))
                lines = await self._newest_lines(record, head)
            elif stored.end < record.size:
                lines = _parse(await self._content(record, stored.end))
            else:
                return stored
        except UnknownArtifact:
            return None
        except ValidationError as error:
            newest = await self.store.versions(CONTEXT, record.artifact_id)
            if not newest or newest[-1].name != record.name:
                raise _conflict(head.session_id) from error
            raise ArtifactError(f"the artifact of the session {head.session_id!r} is damaged: {error}") from error
        session, count = stored.session, stored.lines
        for line in lines:
            if line.nonce != head.nonce:
                continue
            count = line.place + 1
            if line.begins is not None:
                session = Session(head.session_id, head.owner, created=line.at, used=line.at, version=line.begins)
            if line.thought is not None:
                session = session.add(line.thought)
        return self._keep(StoredSession(session, record, count, record.size))

    async def append(
        self, before: StoredSession | None, session: Session, thought: SequentialThought | None, *, begins: bool
    ) -> StoredSession:
        """Append one line to the artifact of a session. Create the artifact if it does not exist.

        Args:
            before: Result of the last read, or None if the artifact does not exist.
            session: Session after the change.
            thought: New thought, or None to clear the session.
            begins: True to start a new version of the session.

        Raises:
            SessionConflict: Another process has changed the session since the last read.
            ArtifactError: The store failed. The session is unchanged.
        """
        record, line_count, end = (None, 0, 0) if before is None else (before.record, before.lines, before.end)
        artifact = artifact_id(session.owner, session.session_id) if record is None else record.artifact_id
        self._cache.pop(artifact, None)
        if record is not None and begins and record.size > _LARGE_BYTES:
            if not await self.store.delete(CONTEXT, artifact, expected=record):
                raise _conflict(session.session_id)
            record, line_count, end = None, 0, 0
        if record is None:
            record = await self._create(artifact, session)
        head = Head.of(record)
        if head is None or (head.owner, head.session_id) != (session.owner, session.session_id):
            raise _conflict(session.session_id)
        line = SessionLine(
            nonce=head.nonce,
            place=line_count,
            write=secrets.token_hex(8),
            begins=session.version if begins else None,
            at=session.created if begins else 0,
            thought=thought,
        )
        data = line.model_dump_json(exclude_none=True, exclude_defaults=True).encode() + b"\n"
        key = f"{head.nonce}.{line_count}"
        try:
            chunk = await self.store.append(
                CONTEXT, artifact, data, version=record.version, last=False, key=key, now=session.used
            )
        except UnknownArtifact as error:
            raise _conflict(session.session_id) from error
        except ArtifactError as error:
            versions = await self.store.versions(CONTEXT, artifact)
            if versions and (versions[-1].name, versions[-1].size) == (record.name, end):
                raise
            raise _conflict(session.session_id) from error
        if chunk.record.name != record.name:
            # Another process has replaced the artifact. Readers ignore this line because its nonce is the old one.
            raise _conflict(session.session_id)
        return self._keep(StoredSession(session, chunk.record, line_count + 1, chunk.offset + len(data)))

    async def delete(self, record: ArtifactRecord, *, changed: bool = False) -> bool:
        """Delete a session artifact and return True if it was deleted.

        Args:
            record: Artifact, as it was listed.
            changed: Also delete the artifact if another process has changed it since.
        """
        self._cache.pop(record.artifact_id, None)
        return await self.store.delete(CONTEXT, record.artifact_id, expected=None if changed else record)

    async def _create(self, artifact: str, session: Session) -> ArtifactRecord:
        """Create a session artifact. If another process has created it first, return the existing artifact."""
        return await self.store.create(
            CONTEXT,
            artifact,
            name=Head(session.owner, session.session_id, secrets.token_hex(8)).to_name(),
            media_type="application/x-ndjson",
            override=False,
            key="create",
            now=session.used,
        )

    async def _newest_lines(self, record: ArtifactRecord, head: Head) -> list[SessionLine]:
        """Read the lines of the newest version. Read backwards in growing blocks to find its first line."""
        size = _BLOCK
        while True:
            start = max(0, record.size - size)
            content = await self._content(record, start)
            if start:
                # Discard the first line because blocks usually start in the middle of a line.
                content = content.partition(b"\n")[2]
            lines = _parse(content)
            for index in reversed(range(len(lines))):
                if lines[index].begins is not None and lines[index].nonce == head.nonce:
                    return lines[index:]
            if not start:
                return lines
            size *= 8

    async def _content(self, record: ArtifactRecord, start: int) -> bytes:
        return await self.store.read(
            CONTEXT, record.artifact_id, version=record.version, offset=start, limit=record.size - start
        )

    def _keep(self, stored: StoredSession) -> StoredSession:
        assert stored.record is not None
        self._cache[stored.record.artifact_id] = stored
        self._cache.move_to_end(stored.record.artifact_id)
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return stored


def _parse(content: bytes) -> list[SessionLine]:
    return [SessionLine.model_validate_json(row) for row in content.split(b"\n") if row]


def _conflict(session_id: str) -> SessionConflict:
    return SessionConflict(f"another writer has changed the session {session_id!r} since it was read: read it again")
