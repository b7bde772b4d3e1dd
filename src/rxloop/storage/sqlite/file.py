"""Identity of the database file."""

from __future__ import annotations

import os
import sqlite3
from os import PathLike, fspath
from pathlib import Path

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.storage.sqlite.database import Fsync, checkpoint, connect, errors_of

_INode = tuple[int, int]


class OpenFile:
    """The file of one connection, and the write-ahead log beside it.

    SQLite goes on writing into a file that was removed, and reports no error: so each writer asks here whether what it
    wrote is in the file. While a connection is open, only who removes the write-ahead log makes another one.
    """

    def __init__(self, path: Path, fsync: Fsync) -> None:
        self.path = path
        # SQLite names it for the file that a link leads to.
        self._wal = f"{path.resolve()}-wal"
        self._fsync: Fsync = fsync
        self._opened: tuple[_INode | None, _INode | None] | None = None
        self._ahead = 0
        self._cut = False

    def open(self) -> sqlite3.Connection:
        """Open the file, or make it.

        Raises:
            EventLogError: It cannot be opened, or not be used.
        """
        with errors_of(self.path):
            connection = connect(self.path, self._fsync)
            self._opened = _inode(self.path), _inode(self._wal)
            # Others may have left much there: the first write looks.
            self._ahead = _AGAIN
            return connection

    def check(self) -> None:
        """Check that the connection reads the file at the path.

        Raises:
            EventLogError: The file is gone, or another one is in its place.
        """
        if self._opened is not None and _inode(self.path) != self._opened[0]:
            raise self._lost(self.path)

    def written(self, events: int) -> bool:
        """Check that what was committed is in the file; return whether it is time to empty the write-ahead log.

        Raises:
            EventLogError: The file or its write-ahead log is gone, or another one is in its place.
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
        """Move what is in the write-ahead log to its place, as far as no reader is in the way."""
        with errors_of(self.path):
            checkpoint(connection, cut=self._cut)

    def close(self, connection: sqlite3.Connection) -> None:
        """Move what is in the write-ahead log to its place, and leave an empty one.

        While others keep the file open, SQLite does not do that, and each writer would leave something there.
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
"""The write-ahead log is cut off when it is as large, whoever has written it. One writer alone writes it over from the
beginning long before, which costs less than to cut it off."""

_MOVE = 1_000
"""Events of this writer after which it moves what is in the write-ahead log."""

_AGAIN = 100
"""The same where it is to be cut off, and a reader was in the way."""


def _inode(path: str | Path) -> _INode | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def checked_place(path: str | PathLike[str], fsync: str, in_memory: str) -> Path:
    """Give the path of a file, whatever folder the process goes to later.

    Args:
        path: The path as it was given.
        fsync: How it is to be written.
        in_memory: What to use where there is no file.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    if fspath(path) in ("", ":memory:"):
        raise ConfigurationError(f"{path!r} is not a file: use {in_memory}")
    if fsync not in ("normal", "full"):
        raise ConfigurationError(f"fsync is 'normal' or 'full', not {fsync!r}")
    return Path(path).absolute()
