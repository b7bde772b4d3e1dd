"""Artifact store in a folder."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from re import compile as regex
from threading import Lock
from typing import Any, TypeVar

import orjson

from rxloop.errors import ArtifactError, ConfigurationError
from rxloop.pipeline.artifact_rules import (
    ArtifactChunk,
    ArtifactRecord,
    check_open,
    check_range,
    exists,
    other_write,
    safe_id,
    unknown,
    version_of,
)
from rxloop.support.safe_files import HAS_DIR_FD, open_file, open_folder, read_range, remove_file, write_range
from rxloop.support.threads import run_in_thread

FOLDER = ".journal"
LOCK_SECONDS = 5.0
_AGAIN_SECONDS = 0.002
_BLOCK = 1 << 20

_START = 40
"""Bytes at the beginning of a journal that identify it: its first line begins with a random number."""


class Journal:
    """What was written of one artifact, as far as it was read.

    Attributes:
        versions: The versions, the newest last.
        begun: The place in `versions` of the one that each key has begun.
        chunks: Of each other key the version, the index, the first byte and the size of its chunk.
    """

    def __init__(self, artifact_id: str) -> None:
        self._artifact_id = artifact_id
        self._lock = Lock()
        self._handle = -1
        self._forget()

    def _forget(self) -> None:
        self._end = 0
        self._start = b""
        self.versions: list[ArtifactRecord] = []
        self.begun: dict[str, int] = {}
        self.chunks: dict[str, tuple[int, int, int, int]] = {}

    def seen(self, place: int) -> list[ArtifactRecord]:
        """Read what there is, and return the versions; none where there is no journal.

        Args:
            place: The open folder of the conversation.

        Raises:
            ArtifactError: The journal is damaged.
        """
        with self._lock:
            try:
                with open_file(place, FOLDER, self._artifact_id, os.O_RDONLY) as handle:
                    self._catch_up(handle)
            except FileNotFoundError:
                self._forget()
            return [*self.versions]

    @contextmanager
    def held(self, place: int, flags: int) -> Generator[None]:
        """Keep other writers out, and know what they have written.

        Args:
            place: The open folder of the conversation.
            flags: How the journal is opened, to write.

        Raises:
            FileNotFoundError: There is no journal, and it is not to be made.
            ArtifactError: Another process has kept it for too long, or it is damaged.
        """
        with self._lock:
            while True:
                with open_file(place, FOLDER, self._artifact_id, flags) as handle:
                    _lock(handle, self._artifact_id)
                    # Another process may have deleted the journal while this one waited: open the new one.
                    if os.fstat(handle).st_nlink:
                        self._catch_up(handle)
                        self._handle = handle
                        yield
                        return

    def write(self, **line: Any) -> None:
        """Write a line, while the journal is held: what it tells is done."""
        data = orjson.dumps(line) + b"\n"
        # Over what a crash has left of a line.
        write_range(self._handle, data, self._end)
        self._take(line)
        self._start = self._start or data[:_START]
        self._end += len(data)

    def delete(self, place: int) -> None:
        """Delete the content of all versions and the journal, while the journal is held."""
        # This line comes first: if this process crashes below, no listed version lacks its content.
        self.write(deleted=True)
        for folder in [*(name for name in os.listdir(place) if name.startswith("v")), FOLDER]:
            remove_file(place, folder, self._artifact_id)
        self._forget()

    def _catch_up(self, handle: int) -> None:
        """Read the lines that others have written; one without its end is not written yet."""
        # A journal that follows a deleted one may have the same inode, so its first bytes tell them apart.
        if os.fstat(handle).st_size < self._end or read_range(handle, 0, len(self._start)) != self._start:
            self._forget()
        rest = b""
        while block := read_range(handle, self._end + len(rest), self._end + len(rest) + _BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                try:
                    self._take(orjson.loads(line))
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise ArtifactError(
                        f"the journal of the artifact {self._artifact_id!r} is damaged at byte {self._end}: {error}"
                    ) from error
                self._start = self._start or line[:_START]
                self._end += len(line) + 1

    def _take(self, line: dict[str, Any]) -> None:
        if "deleted" in line:
            self.versions, self.begun, self.chunks = [], {}, {}
            return
        key, now = line["key"], line["at"]
        if "id" not in line:
            before = self.versions[-1]
            self.chunks[key] = (before.version, before.chunks, before.size, line["size"])
            self.versions[-1] = replace(
                before,
                updated=now,
                size=before.size + line["size"],
                chunks=before.chunks + 1,
                complete=line["last"],
            )
            return
        if line["id"] != self._artifact_id:
            raise ArtifactError(
                f"the artifact {self._artifact_id!r} cannot be told from {line['id']!r} on this file system: "
                "take another id"
            )
        created = self.versions[0].created if self.versions else now
        number = len(self.versions)
        self.begun[key] = number
        self.versions.append(ArtifactRecord(self._artifact_id, number + 1, line["name"], line["type"], created, now))


def _lock(handle: int, artifact_id: str) -> None:
    """Wait for the other writers; the lock goes with the handle."""
    import fcntl  # on POSIX alone

    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ArtifactError(
                    f"another process has held the artifact {artifact_id!r} for more than {LOCK_SECONDS:g} s"
                ) from None
            time.sleep(_AGAIN_SECONDS)


T = TypeVar("T")

_PLAIN = regex(r"[a-z0-9_-][a-z0-9._-]{0,99}")
"""Conversations that are folders under their own names; on some file systems capitals would be the same folder."""

_KEPT = 256
"""Journals that are remembered as far as they were read."""


class FolderArtifacts:
    """Keeps artifacts as files in a folder, which only their owner can read; links in it are never followed.

    Any number of processes of one machine may use it at once. All work is done in threads. It needs a POSIX system.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=FolderArtifacts("files"))
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Make a store; nothing is written yet.

        Args:
            path: The folder; made at the first write, if the one above it is there.

        Raises:
            ConfigurationError: There is something else at the path, or the system cannot do it.
        """
        self.path = Path(path).absolute()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is not a folder")
        if not HAS_DIR_FD:
            raise ConfigurationError("FolderArtifacts needs a POSIX system: use SqliteArtifacts")
        self._journals: OrderedDict[tuple[str, str], Journal] = OrderedDict()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<FolderArtifacts {self.path}>"

    async def create(
        self, context_id: str, artifact_id: str, *, name: str, media_type: str, override: bool, key: str, now: int
    ) -> ArtifactRecord:
        """Begin an artifact, or its next version, as `ArtifactStore.create` says.

        Raises:
            ArtifactExists: There is one, and no `override`.
            ArtifactError: The id is not a plain name, or the folder cannot be written.
        """
        artifact_id = safe_id(artifact_id)

        def work(place: int) -> ArtifactRecord:
            journal = self._journal(context_id, artifact_id)
            with journal.held(place, os.O_RDWR | os.O_CREAT):
                if key in journal.begun:
                    return journal.versions[journal.begun[key]]
                if journal.versions and not override:
                    raise exists(artifact_id)
                with open_file(place, f"v{len(journal.versions) + 1}", artifact_id, os.O_RDWR | os.O_CREAT) as content:
                    os.ftruncate(content, 0)
                journal.write(nonce=os.urandom(8).hex(), id=artifact_id, name=name, type=media_type, at=now, key=key)
                return journal.versions[-1]

        record = await self._do(context_id, work, make=True)
        assert record is not None
        return record

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk, as `ArtifactStore.append` says.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: It is complete, or begun anew, the key was used for another chunk, or the folder cannot be
                written.
        """
        artifact_id = safe_id(artifact_id)

        def work(place: int) -> ArtifactChunk:
            journal = self._journal(context_id, artifact_id)
            with journal.held(place, os.O_RDWR):
                if (found := journal.chunks.get(key)) is not None:
                    number, index, start, size = found
                    if size != len(data) or _content(place, number, artifact_id, start, start + size) != data:
                        raise other_write(artifact_id)
                    return ArtifactChunk(journal.versions[number - 1], index, start)
                if not journal.versions:
                    raise unknown(artifact_id)
                before = journal.versions[-1]
                check_open(before, version)
                with open_file(place, f"v{before.version}", artifact_id, os.O_RDWR) as content:
                    write_range(content, data, before.size)
                journal.write(size=len(data), last=last, at=now, key=key)
                return ArtifactChunk(journal.versions[-1], before.chunks, before.size)

        found = await self._do(context_id, work)
        if found is None:
            raise unknown(artifact_id)
        return found

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        version: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Read a range of a version, by default the newest, as `ArtifactStore.read` says.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: The range is none, or the folder cannot be read.
        """
        artifact_id = safe_id(artifact_id)
        check_range(offset, limit)

        def work(place: int) -> bytes:
            versions = self._journal(context_id, artifact_id).seen(place)
            record = version_of(versions, artifact_id, version)
            end = record.size if limit is None else min(record.size, offset + limit)
            return _content(place, record.version, artifact_id, offset, end)

        found = await self._do(context_id, work)
        if found is None:
            raise unknown(artifact_id)
        return found

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List the versions of an artifact, the newest last.

        Raises:
            ArtifactError: The folder cannot be read.
        """
        journal = self._journal(context_id, safe_id(artifact_id))
        return await self._do(context_id, journal.seen) or ()

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the newest version of each artifact of a conversation, by id.

        Raises:
            ArtifactError: The folder cannot be read.
        """

        def work(place: int) -> Sequence[ArtifactRecord]:
            with open_folder(place, FOLDER) as journals, os.scandir(journals) as entries:
                # No artifact begins with a dot, but what a file manager leaves behind does.
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            found = [self._journal(context_id, name).seen(place) for name in names]
            return [versions[-1] for versions in found if versions]

        return await self._do(context_id, work) or ()

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact with all its versions, as `ArtifactStore.delete` says.

        Raises:
            ArtifactError: The folder cannot be written.
        """
        artifact_id = safe_id(artifact_id)

        def work(place: int) -> bool:
            journal = self._journal(context_id, artifact_id)
            with journal.held(place, os.O_RDWR):
                found = bool(journal.versions)
                if found and expected not in (None, journal.versions[-1]):
                    return False
                # Even if no version is listed: a process that crashed may have left content.
                journal.delete(place)
                return found

        return await self._do(context_id, work) or False

    async def aclose(self) -> None:
        """Nothing stays open between two calls."""

    def _journal(self, context_id: str, artifact_id: str) -> Journal:
        key = (context_id, artifact_id)
        with self._lock:
            journal = self._journals.setdefault(key, Journal(artifact_id))
            self._journals.move_to_end(key)
            if len(self._journals) > _KEPT:
                self._journals.popitem(last=False)
            return journal

    async def _do(self, context_id: str, work: Callable[[int], T], *, make: bool = False) -> T | None:
        """Do something in the open folder of a conversation, in a thread; None where it is not there."""
        name = context_id if _PLAIN.fullmatch(context_id) else "~" + sha256(context_id.encode()).hexdigest()

        def done() -> T | None:
            try:
                if make:
                    with suppress(FileExistsError):
                        self.path.mkdir(mode=0o700)
                # The folder itself may be a link: its owner has named it.
                root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    with open_folder(root, name, create=make) as place:
                        return work(place)
                finally:
                    os.close(root)
            except FileNotFoundError as error:
                if not make:
                    return None
                raise ArtifactError(f"the folder {self.path}: {error}; check that the one above it exists") from error
            except OSError as error:
                raise ArtifactError(f"the folder {self.path}: {error}") from error

        return await run_in_thread(done)


def _content(place: int, version: int, artifact_id: str, start: int, end: int) -> bytes:
    with open_file(place, f"v{version}", artifact_id, os.O_RDONLY) as content:
        data = read_range(content, start, end)
    if len(data) < end - start:
        raise ArtifactError(f"the artifact {artifact_id!r} was cut off: its file is shorter than its journal says")
    return data
