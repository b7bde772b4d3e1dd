"""Artifacts as files in a folder, for people and other programs to look at.

::

    files/                      the folder
        <conversation>/
            v1/report.md        the content of each version, whole or as far as it is written
            .journal/report.md  a line for each write: what is not in there did not happen

A write goes to the content first and to the journal then, and the next one begins where the journal ends. Writers of
one artifact wait for each other by a lock on its journal, in whatever process.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from os import PathLike
from pathlib import Path
from re import compile as regex
from threading import Lock
from typing import TypeVar

from rxloop.errors import ArtifactError, ConfigurationError
from rxloop.eventlog._journal import FOLDER, Journal
from rxloop.pipeline.artifact_rules import (
    check_open,
    check_range,
    exists,
    other_write,
    safe_id,
    unknown,
    version_of,
)
from rxloop.pipeline.values import ArtifactChunk, ArtifactRecord
from rxloop.stream.below import BY_HANDLE, file_in, folder_in, read_at, write_at
from rxloop.stream.threads import in_thread

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
        if not BY_HANDLE:
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
                with file_in(place, f"v{len(journal.versions) + 1}", artifact_id, os.O_RDWR | os.O_CREAT) as content:
                    os.ftruncate(content, 0)
                journal.write(id=artifact_id, name=name, type=media_type, at=now, key=key)
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
                with file_in(place, f"v{before.version}", artifact_id, os.O_RDWR) as content:
                    write_at(content, data, before.size)
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
            with folder_in(place, FOLDER) as journals, os.scandir(journals) as entries:
                # No artifact begins with a dot, but what a file manager leaves behind does.
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            found = [self._journal(context_id, name).seen(place) for name in names]
            return [versions[-1] for versions in found if versions]

        return await self._do(context_id, work) or ()

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
                    with folder_in(root, name, make=make) as place:
                        return work(place)
                finally:
                    os.close(root)
            except FileNotFoundError as error:
                if not make:
                    return None
                raise ArtifactError(f"the folder {self.path}: {error}; check that the one above it exists") from error
            except OSError as error:
                raise ArtifactError(f"the folder {self.path}: {error}") from error

        return await in_thread(done)


def _content(place: int, version: int, artifact_id: str, start: int, end: int) -> bytes:
    with file_in(place, f"v{version}", artifact_id, os.O_RDONLY) as content:
        data = read_at(content, start, end)
    if len(data) < end - start:
        raise ArtifactError(f"the artifact {artifact_id!r} was cut off: its file is shorter than its journal says")
    return data
