"""Files below an open folder: never through a link, and for their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _SAFE
# Not blocking: to open a pipe would otherwise wait until somebody writes to it.
_FILE = _SAFE | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def folder(place: int, name: str, *, make: bool = False) -> Generator[int]:
    """Open a folder in an open folder; with `make` it is made, if it is not there.

    Raises:
        OSError: It is not there, or is a link or a file.
    """
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=place)
    handle = os.open(name, _FOLDER, dir_fd=place)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def file(place: int, within: str, name: str, flags: int) -> Generator[int]:
    """Open a file in a folder in an open folder; with `O_CREAT` among the flags both are made.

    Raises:
        OSError: It is not there, or is a link or something else than a file.
    """
    with folder(place, within, make=bool(flags & os.O_CREAT)) as parent:
        handle = os.open(name, flags | _FILE, 0o600, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{within}/{name} is not a file")
        yield handle
    finally:
        os.close(handle)


def write_at(handle: int, data: bytes, start: int) -> None:
    """Write all of the data there, and cut off what comes behind it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, start)
        view, start = view[written:], start + written
    os.ftruncate(handle, start)


def read_at(handle: int, start: int, end: int) -> bytes:
    """Read that range, or as much of it as there is."""
    pieces: list[bytes] = []
    while start < end and (piece := os.pread(handle, min(end - start, 1 << 20), start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
