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
    find_version,
    make_artifact_exists_error,
    make_key_conflict_error,
    make_unknown_artifact_error,
    normalize_id,
)
from rxloop.support.safe_files import HAS_DIR_FD, open_file, open_folder, read_range, remove_file, write_range
from rxloop.support.threads import run_in_thread

FOLDER = ".journal"
LOCK_SECONDS = 5.0
_RETRY_SECONDS = 0.002
_BLOCK_BYTES = 1 << 20

_PREFIX_BYTES = 40
"""Length of the journal prefix in bytes. The prefix contains a nonce that identifies the journal."""


class Journal:
    """Cached journal of an artifact.

    Attributes:
        versions: Artifact versions, oldest first.
        version_indexes: Index in `versions` by creation key.
        chunks: Version, chunk index, start offset and size by append key.
    """

    def __init__(self, artifact_id: str) -> None:
        self._artifact_id = artifact_id
        self._lock = Lock()
        self._handle = -1
        self._reset()

    def _reset(self) -> None:
        self._end = 0
        self._prefix = b""
        self.versions: list[ArtifactRecord] = []
        self.version_indexes: dict[str, int] = {}
        self.chunks: dict[str, tuple[int, int, int, int]] = {}

    def read_versions(self, folder: int) -> list[ArtifactRecord]:
        """Read new journal lines and return the versions. A missing journal has no versions.

        Args:
            folder: File descriptor of the conversation folder.

        Raises:
            ArtifactError: If the journal is corrupt.
        """
        with self._lock:
            try:
                with open_file(folder, FOLDER, self._artifact_id, os.O_RDONLY) as handle:
                    self._read_new_lines(handle)
            except FileNotFoundError:
                self._reset()
            return [*self.versions]

    @contextmanager
    def lock(self, folder: int, flags: int) -> Generator[None]:
        """Lock the journal for writing and read new lines.

        Args:
            folder: File descriptor of the conversation folder.
            flags: Flags for `os.open`.

        Raises:
            FileNotFoundError: If the journal does not exist and the flags do not create it.
            ArtifactError: If the journal is corrupt, or locked by another process for too long.
        """
        with self._lock:
            while True:
                with open_file(folder, FOLDER, self._artifact_id, flags) as handle:
                    _lock(handle, self._artifact_id)
                    # Another process may have deleted the journal while this one waited for the lock. Open the new
                    # journal.
                    if os.fstat(handle).st_nlink:
                        self._read_new_lines(handle)
                        self._handle = handle
                        yield
                        return

    def write(self, **line: Any) -> None:
        """Write and apply a journal line. The journal must be locked."""
        data = orjson.dumps(line) + b"\n"
        # Overwrite an incomplete line left by a crash.
        write_range(self._handle, data, self._end)
        self._apply(line)
        self._prefix = self._prefix or data[:_PREFIX_BYTES]
        self._end += len(data)

    def delete(self, folder: int) -> None:
        """Delete all content and the journal. The journal must be locked."""
        # Written first, so that no listed version lacks its content after a crash.
        self.write(deleted=True)
        for subfolder in [*(name for name in os.listdir(folder) if name.startswith("v")), FOLDER]:
            remove_file(folder, subfolder, self._artifact_id)
        self._reset()

    def _read_new_lines(self, handle: int) -> None:
        """Read the complete lines that other processes have appended."""
        # A new journal may reuse the inode of a deleted one, so compare the prefix.
        if os.fstat(handle).st_size < self._end or read_range(handle, 0, len(self._prefix)) != self._prefix:
            self._reset()
        rest = b""
        while block := read_range(handle, self._end + len(rest), self._end + len(rest) + _BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                try:
                    self._apply(orjson.loads(line))
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise ArtifactError(
                        f"Cannot parse the journal of artifact {self._artifact_id!r} at byte {self._end}: {error}"
                    ) from error
                self._prefix = self._prefix or line[:_PREFIX_BYTES]
                self._end += len(line) + 1

    def _apply(self, line: dict[str, Any]) -> None:
        if "deleted" in line:
            self.versions, self.version_indexes, self.chunks = [], {}, {}
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
                f"The artifact IDs {self._artifact_id!r} and {line['id']!r} are the same file on this file system. "
                "Choose another ID."
            )
        created = self.versions[0].created if self.versions else now
        number = len(self.versions)
        self.version_indexes[key] = number
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
                    f"Another process has locked artifact {artifact_id!r} for more than {LOCK_SECONDS:g} s."
                ) from None
            time.sleep(_RETRY_SECONDS)


T = TypeVar("T")

_FOLDER_NAME = regex(r"[a-z0-9_-][a-z0-9._-]{0,99}")
"""Conversation IDs that are valid folder names. Uppercase is excluded because some file systems ignore case."""

_MAX_JOURNALS = 256
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
            raise ConfigurationError(f"path must be a folder, got the file {self.path}.")
        if not HAS_DIR_FD:
            raise ConfigurationError("FolderArtifacts requires a POSIX system. Use SqliteArtifacts instead.")
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
        artifact_id = normalize_id(artifact_id)

        def work(folder: int) -> ArtifactRecord:
            journal = self._get_journal(context_id, artifact_id)
            with journal.lock(folder, os.O_RDWR | os.O_CREAT):
                if key in journal.version_indexes:
                    return journal.versions[journal.version_indexes[key]]
                if journal.versions and not override:
                    raise make_artifact_exists_error(artifact_id)
                with open_file(folder, f"v{len(journal.versions) + 1}", artifact_id, os.O_RDWR | os.O_CREAT) as handle:
                    os.ftruncate(handle, 0)
                journal.write(nonce=os.urandom(8).hex(), id=artifact_id, name=name, type=media_type, at=now, key=key)
                return journal.versions[-1]

        record = await self._do(context_id, work, create=True)
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
        artifact_id = normalize_id(artifact_id)

        def work(folder: int) -> ArtifactChunk:
            journal = self._get_journal(context_id, artifact_id)
            with journal.lock(folder, os.O_RDWR):
                if (stored := journal.chunks.get(key)) is not None:
                    number, index, start, size = stored
                    if size != len(data) or _read_content(folder, number, artifact_id, start, start + size) != data:
                        raise make_key_conflict_error(artifact_id)
                    return ArtifactChunk(journal.versions[number - 1], index, start)
                if not journal.versions:
                    raise make_unknown_artifact_error(artifact_id)
                before = journal.versions[-1]
                check_open(before, version)
                with open_file(folder, f"v{before.version}", artifact_id, os.O_RDWR) as content:
                    write_range(content, data, before.size)
                journal.write(size=len(data), last=last, at=now, key=key)
                return ArtifactChunk(journal.versions[-1], before.chunks, before.size)

        chunk = await self._do(context_id, work)
        if chunk is None:
            raise make_unknown_artifact_error(artifact_id)
        return chunk

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
        artifact_id = normalize_id(artifact_id)
        check_range(offset, limit)

        def work(folder: int) -> bytes:
            versions = self._get_journal(context_id, artifact_id).read_versions(folder)
            record = find_version(versions, artifact_id, version)
            end = record.size if limit is None else min(record.size, offset + limit)
            return _read_content(folder, record.version, artifact_id, offset, end)

        data = await self._do(context_id, work)
        if data is None:
            raise make_unknown_artifact_error(artifact_id)
        return data

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List artifact versions, from oldest to newest.

        Raises:
            ArtifactError: If the folder is not readable.
        """
        journal = self._get_journal(context_id, normalize_id(artifact_id))
        return await self._do(context_id, journal.read_versions) or ()

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the latest version of each artifact in a conversation, sorted by ID.

        Raises:
            ArtifactError: If the folder is not readable.
        """

        def work(folder: int) -> Sequence[ArtifactRecord]:
            with open_folder(folder, FOLDER) as journals, os.scandir(journals) as entries:
                # Hidden files are created by file managers; artifact IDs never start with a dot.
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            listed = [self._get_journal(context_id, name).read_versions(folder) for name in names]
            return [versions[-1] for versions in listed if versions]

        return await self._do(context_id, work) or ()

    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        """Delete an artifact and its versions, implementing `ArtifactStore.delete`.

        Raises:
            ArtifactError: If the folder is not writable.
        """
        artifact_id = normalize_id(artifact_id)

        def work(folder: int) -> bool:
            journal = self._get_journal(context_id, artifact_id)
            with journal.lock(folder, os.O_RDWR):
                is_stored = bool(journal.versions)
                if is_stored and expected not in (None, journal.versions[-1]):
                    return False
                # Delete even without listed versions, because a crashed process may have left content.
                journal.delete(folder)
                return is_stored

        return await self._do(context_id, work) or False

    async def aclose(self) -> None:
        """Do nothing. Files are closed after each call."""

    def _get_journal(self, context_id: str, artifact_id: str) -> Journal:
        key = (context_id, artifact_id)
        with self._lock:
            journal = self._journals.setdefault(key, Journal(artifact_id))
            self._journals.move_to_end(key)
            if len(self._journals) > _MAX_JOURNALS:
                self._journals.popitem(last=False)
            return journal

    async def _do(self, context_id: str, work: Callable[[int], T], *, create: bool = False) -> T | None:
        """Call `work` with an open conversation folder in a thread. Return None if the folder does not exist."""
        name = context_id if _FOLDER_NAME.fullmatch(context_id) else "~" + sha256(context_id.encode()).hexdigest()

        def run() -> T | None:
            try:
                if create:
                    with suppress(FileExistsError):
                        self.path.mkdir(mode=0o700)
                # The root folder may be a symbolic link, because its owner configured the path.
                root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    with open_folder(root, name, create=create) as folder:
                        return work(folder)
                finally:
                    os.close(root)
            except FileNotFoundError as error:
                if not create:
                    return None
                raise ArtifactError(f"the folder {self.path}: {error}. Check that its parent folder exists.") from error
            except OSError as error:
                raise ArtifactError(f"the folder {self.path}: {error}") from error

        return await run_in_thread(run)


def _read_content(folder: int, version: int, artifact_id: str, start: int, end: int) -> bytes:
    with open_file(folder, f"v{version}", artifact_id, os.O_RDONLY) as content:
        data = read_range(content, start, end)
    if len(data) < end - start:
        raise ArtifactError(f"Artifact {artifact_id!r} is truncated. Its file is shorter than its journal states.")
    return data
