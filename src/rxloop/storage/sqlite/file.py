"""Identity checks for the database file and its write-ahead log."""

from __future__ import annotations

import os
import sqlite3
from os import PathLike, fspath
from pathlib import Path

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.storage.sqlite.database import Fsync, checkpoint, connect, errors_of

_INode = tuple[int, int]


class OpenFile:
    """Database file of a connection, with its write-ahead log (WAL).

    SQLite continues to write into a deleted file without reporting an error. Therefore, each writer checks after a
    commit that both files are still in place. While a connection is open, the WAL is replaced only if another program
    deletes it.
    """

    def __init__(self, path: Path, fsync: Fsync) -> None:
        self.path = path
        # SQLite resolves symbolic links before it names the WAL file.
        self._wal = f"{path.resolve()}-wal"
        self._fsync: Fsync = fsync
        self._opened: tuple[_INode | None, _INode | None] | None = None
        self._ahead = 0
        self._cut = False

    def open(self) -> sqlite3.Connection:
        """Open or create the file.

        Raises:
            EventLogError: If the file cannot be opened, or is not usable.
        """
        with errors_of(self.path):
            connection = connect(self.path, self._fsync)
            self._opened = _inode(self.path), _inode(self._wal)
            # Other processes may have left a large WAL, so check its size on the first write.
            self._ahead = _AGAIN
            return connection

    def check(self) -> None:
        """Check that the connection still refers to the file at the path.

        Raises:
            EventLogError: If the file was deleted or replaced.
        """
        if self._opened is not None and _inode(self.path) != self._opened[0]:
            raise self._lost(self.path)

    def written(self, events: int) -> bool:
        """Check the files after a commit, and return True if a checkpoint is due.

        Raises:
            EventLogError: If the file or its WAL was deleted or replaced.
        """
        self.check()
        try:
            wal = os.stat(self._wal)  # noqa: PTH116 - at each write: a Path would take twice as long
        except OSError:
            raise self._lost(self._wal) from None
        if self._opened is not None and (wal.st_dev, wal.st_ino) != self._opened[1]:
            raise self._lost(self._wal)
        self._ahead += events
        self._cut = wal.st_size >= WAL_BYTES
        if self._ahead < (_AGAIN if self._cut else _MOVE):
            return False
        self._ahead = 0
        return True

    def move(self, connection: sqlite3.Connection) -> None:
        """Copy pages from the WAL to the database without waiting for readers."""
        with errors_of(self.path):
            checkpoint(connection, cut=self._cut)

    def close(self, connection: sqlite3.Connection) -> None:
        """Run a checkpoint and truncate the WAL.

        SQLite itself only does this when the last connection is closed.
        """
        with errors_of(self.path):
            checkpoint(connection, cut=True)

    def _lost(self, path: str | Path) -> EventLogError:
        return EventLogError(
            f"the event log {self.path}: {path} was removed or replaced while it was open; what this log has written "
            "since is not in the file that is there now. Put the file back in its place, or close the log and begin "
            "with the one that is there",
            retryable=False,
        )


WAL_BYTES = 32 << 20
"""Size at which the WAL is truncated, including data from other writers. A single writer overwrites the WAL from the
start long before, which is cheaper."""

_MOVE = 1_000
"""Number of events between checkpoints."""

_AGAIN = 100
"""Number of events between attempts to truncate the WAL while a reader prevents it."""


def _inode(path: str | Path) -> _INode | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def checked_place(path: str | PathLike[str], fsync: str, in_memory: str) -> Path:
    """Validate the file options and return the absolute path.

    Args:
        path: File path.
        fsync: Durability mode.
        in_memory: Suggested alternative without a file, for error messages.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if fspath(path) in ("", ":memory:"):
        raise ConfigurationError(f"{path!r} is not a file: use {in_memory}")
    if fsync not in ("normal", "full"):
        raise ConfigurationError(f"fsync is 'normal' or 'full', not {fsync!r}")
    return Path(path).absolute()
