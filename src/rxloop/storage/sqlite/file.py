"""Identity checks for the database file and its write-ahead log."""

from __future__ import annotations

import os
import sqlite3
from os import PathLike, fspath
from pathlib import Path

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.storage.sqlite.database import Fsync, checkpoint, connect, convert_errors

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
        self._inodes: tuple[_INode | None, _INode | None] | None = None
        self._events_since_checkpoint = 0
        self._truncate_wal = False

    def open(self) -> sqlite3.Connection:
        """Open or create the file.

        Raises:
            EventLogError: If the file cannot be opened, or is not usable.
        """
        with convert_errors(self.path):
            connection = connect(self.path, self._fsync)
            self._inodes = _read_inode(self.path), _read_inode(self._wal)
            # Other processes may have left a large WAL, so check its size on the first write.
            self._events_since_checkpoint = _TRUNCATE_EVENTS
            return connection

    def check(self) -> None:
        """Check that the connection still refers to the file at the path.

        Raises:
            EventLogError: If the file was deleted or replaced.
        """
        if self._inodes is not None and _read_inode(self.path) != self._inodes[0]:
            raise self._make_replaced_error(self.path)

    def needs_checkpoint(self, events: int) -> bool:
        """Check the files after a commit, and return True if a checkpoint is due.

        Raises:
            EventLogError: If the file or its WAL was deleted or replaced.
        """
        self.check()
        try:
            wal = os.stat(self._wal)  # noqa: PTH116 - at each write: a Path would take twice as long
        except OSError:
            raise self._make_replaced_error(self._wal) from None
        if self._inodes is not None and (wal.st_dev, wal.st_ino) != self._inodes[1]:
            raise self._make_replaced_error(self._wal)
        self._events_since_checkpoint += events
        self._truncate_wal = wal.st_size >= WAL_BYTES
        if self._events_since_checkpoint < (_TRUNCATE_EVENTS if self._truncate_wal else _CHECKPOINT_EVENTS):
            return False
        self._events_since_checkpoint = 0
        return True

    def checkpoint_wal(self, connection: sqlite3.Connection) -> None:
        """Copy pages from the WAL to the database without waiting for readers."""
        with convert_errors(self.path):
            checkpoint(connection, truncate=self._truncate_wal)

    def close(self, connection: sqlite3.Connection) -> None:
        """Run a checkpoint and truncate the WAL.

        SQLite itself only does this when the last connection is closed.
        """
        with convert_errors(self.path):
            checkpoint(connection, truncate=True)

    def _make_replaced_error(self, path: str | Path) -> EventLogError:
        return EventLogError(
            f"the event log {self.path}: {path} was removed or replaced while it was open. The current file does not "
            "contain the events written since then. Restore the original file, or close the log to use the current "
            "file.",
            retryable=False,
        )


WAL_BYTES = 32 << 20
"""Size at which the WAL is truncated, including data from other writers. A single writer overwrites the WAL from the
start long before, which is cheaper."""

_CHECKPOINT_EVENTS = 1_000
"""Number of events between checkpoints."""

_TRUNCATE_EVENTS = 100
"""Number of events between attempts to truncate the WAL while a reader prevents it."""


def _read_inode(path: str | Path) -> _INode | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_path(path: str | PathLike[str], fsync: str, in_memory: str) -> Path:
    """Validate the file options and return the absolute path.

    Args:
        path: File path.
        fsync: Durability mode.
        in_memory: Suggested alternative without a file, for error messages.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if fspath(path) in ("", ":memory:"):
        raise ConfigurationError(f"path must be a file path, got {path!r}. Use {in_memory}.")
    if "://" in fspath(path):
        raise ConfigurationError(f"path must be a file path, got {path!r}. Pass a URL to open_log().")
    if fsync not in ("normal", "full"):
        raise ConfigurationError(f"fsync must be 'normal' or 'full', got {fsync!r}.")
    return Path(path).absolute()
