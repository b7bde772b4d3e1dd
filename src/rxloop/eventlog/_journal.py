"""The journal of an artifact in a folder: a line of JSON for each write, and a lock for its writers."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

import orjson

from rxloop.errors import ArtifactError
from rxloop.pipeline.values import ArtifactRecord
from rxloop.stream.below import file_in, read_at, write_at

FOLDER = ".journal"
LOCK_SECONDS = 5.0
_AGAIN_SECONDS = 0.002
_BLOCK = 1 << 20


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
        self._forget(None)

    def _forget(self, inode: int | None) -> None:
        self._inode = inode
        self._end = 0
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
                with file_in(place, FOLDER, self._artifact_id, os.O_RDONLY) as handle:
                    self._catch_up(handle)
            except FileNotFoundError:
                self._forget(None)
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
        with self._lock, file_in(place, FOLDER, self._artifact_id, flags) as handle:
            _lock(handle, self._artifact_id)
            self._catch_up(handle)
            self._handle = handle
            yield

    def write(self, **line: Any) -> None:
        """Write a line, while the journal is held: what it tells is done."""
        data = orjson.dumps(line) + b"\n"
        # Over what a crash has left of a line.
        write_at(self._handle, data, self._end)
        self._take(line)
        self._end += len(data)

    def _catch_up(self, handle: int) -> None:
        """Read the lines that others have written; one without its end is not written yet."""
        found = os.fstat(handle)
        if found.st_ino != self._inode or found.st_size < self._end:
            self._forget(found.st_ino)
        rest = b""
        while block := read_at(handle, self._end + len(rest), self._end + len(rest) + _BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                try:
                    self._take(orjson.loads(line))
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise ArtifactError(
                        f"the journal of the artifact {self._artifact_id!r} is damaged at byte {self._end}: {error}"
                    ) from error
                self._end += len(line) + 1

    def _take(self, line: dict[str, Any]) -> None:
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
