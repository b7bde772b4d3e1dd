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
"""Length of the journal prefix in bytes. The prefix contains a nonce that identifies the journal."""


class Journal:
    """Cached journal of an artifact.

    Attributes:
        versions: Artifact versions, oldest first.
        begun: Index in `versions` by creation key.
        chunks: Version, chunk index, start offset and size by append key.
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
        """Read new journal lines and return the versions. A missing journal has no versions.

        Args:
            place: File descriptor of the conversation folder.

        Raises:
            ArtifactError: If the journal is corrupt.
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
        """Lock the journal for writing and read new lines.

        Args:
            place: File descriptor of the conversation folder.
            flags: Flags for `os.open`.

        Raises:
            FileNotFoundError: If the journal does not exist and the flags do not create it.
            ArtifactError: If the journal is corrupt, or locked by another process for too long.
        """
        with self._lock:
            while True:
                with open_file(place, FOLDER, self._artifact_id, flags) as handle:
                    _lock(handle, self._artifact_id)
                    # Another process may have deleted the journal while this one waited for the lock. Open the new
                    # journal.
                    if os.fstat(handle).st_nlink:
                        self._catch_up(handle)
                        self._handle = handle
                        yield
                        return

    def write(self, **line: Any) -> None:
        """Write and apply a journal line. The journal must be locked."""
        data = orjson.dumps(line) + b"\n"
        # Overwrite an incomplete line left by a crash.
        write_range(self._handle, data, self._end)
        self._take(line)
        self._start = self._start or data[:_START]
        self._end += len(data)

    def delete(self, place: int) -> None:
        """Delete all content and the journal. The journal must be locked."""
        # Written first, so that no listed version lacks its content after a crash.
        self.write(deleted=True)
        for folder in [*(name for name in os.listdir(place) if name.startswith("v")), FOLDER]:
            remove_file(place, folder, self._artifact_id)
        self._forget()

    def _catch_up(self, handle: int) -> None:
        """Read the complete lines that other processes have appended."""
        # A new journal may reuse the inode of a deleted one, so compare the prefix.
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
    """Acquire an exclusive lock. Closing the handle releases the lock."""
    import fcntl  # POSIX only

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
"""Conversation IDs that are valid folder names. Uppercase is excluded because some file systems ignore case."""

_KEPT = 256
"""Maximum number of cached journals."""


class FolderArtifacts:
    """Artifact store that uses files in a private folder. Symbolic links inside the folder are never followed.

    Processes on the same machine may share the folder. File operations run in threads. Requires a POSIX system.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=FolderArtifacts("files"))
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Create a store without writing anything.

        Args:
            path: Folder path. The first write creates the folder if its parent exists.

        Raises:
            ConfigurationError: If the path is not a folder, or the operating system is not supported.
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
        """Create an artifact or a new version, implementing `ArtifactStore.create`.

        Raises:
            ArtifactExists: If the artifact exists and `override` is False.
            ArtifactError: If the ID is not a plain name, or the folder is not writable.
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
        """Append a chunk, implementing `ArtifactStore.append`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the version is closed, the key belongs to another chunk, or the folder is not writable.
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
        """Read a byte range of a version, implementing `ArtifactStore.read`.

        Raises:
            UnknownArtifact: If the artifact does not exist.
            ArtifactError: If the range is invalid, or the folder is not readable.
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
        """List artifact versions, from oldest to newest.

        Raises:
            ArtifactError: If the folder is not readable.
        """
        journal = self._journal(context_id, safe_id(artifact_id))
        return await self._do(context_id, journal.seen) or ()

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact in a conversation, sorted by ID.

        Raises:
            ArtifactError: If the folder is not readable.
        """

        def work(place: int) -> Sequence[ArtifactRecord]:
            with open_folder(place, FOLDER) as journals, os.scandir(journals) as entries:
                # Hidden files are created by file managers; artifact IDs never start with a dot.
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            found = [self._journal(context_id, name).seen(place) for name in names]
            return [versions[-1] for versions in found if versions]

        return await self._do(context_id, work) or ()

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact and its versions, implementing `ArtifactStore.delete`.

        Raises:
            ArtifactError: If the folder is not writable.
        """
        artifact_id = safe_id(artifact_id)

        def work(place: int) -> bool:
            journal = self._journal(context_id, artifact_id)
            with journal.held(place, os.O_RDWR):
                found = bool(journal.versions)
                if found and expected not in (None, journal.versions[-1]):
                    return False
                # Delete even without listed versions, because a crashed process may have left content.
                journal.delete(place)
                return found

        return await self._do(context_id, work) or False

    async def aclose(self) -> None:
        """Do nothing, as files are closed after each call."""

    def _journal(self, context_id: str, artifact_id: str) -> Journal:
        key = (context_id, artifact_id)
        with self._lock:
            journal = self._journals.setdefault(key, Journal(artifact_id))
            self._journals.move_to_end(key)
            if len(self._journals) > _KEPT:
                self._journals.popitem(last=False)
            return journal

    async def _do(self, context_id: str, work: Callable[[int], T], *, make: bool = False) -> T | None:
        """Call `work` with an open conversation folder in a thread. Return None if the folder does not exist."""
        name = context_id if _PLAIN.fullmatch(context_id) else "~" + sha256(context_id.encode()).hexdigest()

        def done() -> T | None:
            try:
                if make:
                    with suppress(FileExistsError):
                        self.path.mkdir(mode=0o700)
                # The root folder may be a symbolic link, because its owner configured the path.
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
