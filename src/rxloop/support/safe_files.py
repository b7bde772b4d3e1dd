"""Access to files under a root folder, without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

BY_HANDLE = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether the system opens a path below an open folder; Windows does not."""

# Not blocking: to open a pipe would otherwise wait until somebody writes to it. Binary: on Windows alone.
_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_FOLDER = getattr(os, "O_DIRECTORY", 0)

_BLOCK = 1 << 20


@contextmanager
def open_path(root: Path, name: str, *, folder: bool = False) -> Generator[int]:
    """Open a file, or a folder, by its path below a folder, to read it; -1 for a folder on Windows.

    Args:
        root: The folder; it may be a link itself, since its owner has named it.
        name: The path, with slashes; empty for the folder itself.
        folder: Open a folder.

    Raises:
        OSError: It is not there, it is something else, or there is a link on the way.
    """
    handle = _open_below(root, name, folder) if BY_HANDLE else _open_by_path(root, name)
    try:
        if not folder and (handle == -1 or not stat.S_ISREG(os.fstat(handle).st_mode)):
            raise OSError(f"{name} is not a file")
        yield handle
    finally:
        if handle != -1:
            os.close(handle)


def _open_below(root: Path, name: str, folder: bool) -> int:
    handle = os.open(root, os.O_RDONLY | _FOLDER)
    parts = name.split("/") if name else []
    for place, part in enumerate(parts, 1):
        above = handle
        try:
            handle = os.open(part, _FLAGS | (_FOLDER if folder or place < len(parts) else 0), dir_fd=above)
        finally:
            os.close(above)
    return handle


def _open_by_path(root: Path, name: str) -> int:
    """Open it where folders cannot be opened, and compare it afterwards."""
    path = root / name
    if path.resolve() != root.resolve().joinpath(*name.split("/")) or path.is_symlink():
        raise OSError(f"{name} is a link, or lies behind one")
    if path.is_dir():
        return -1
    handle = os.open(path, os.O_RDONLY | _FLAGS)
    if os.path.samestat(os.fstat(handle), path.lstat()):
        return handle
    os.close(handle)
    raise OSError(f"{name} was replaced meanwhile")


@contextmanager
def open_folder(place: int, name: str, *, make: bool = False) -> Generator[int]:
    """Open a folder in an open folder; with `make` it is made, if it is not there.

    Raises:
        OSError: It is not there, or is a link or a file.
    """
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=place)
    handle = os.open(name, _FLAGS | _FOLDER, dir_fd=place)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def open_file(place: int, within: str, name: str, flags: int) -> Generator[int]:
    """Open a file in a folder in an open folder; with `O_CREAT` among the flags both are made.

    Raises:
        OSError: It is not there, or is a link or something else than a file.
    """
    with open_folder(place, within, make=bool(flags & os.O_CREAT)) as parent:
        handle = os.open(name, flags | _FLAGS, 0o600, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{within}/{name} is not a file")
        yield handle
    finally:
        os.close(handle)


def remove_file(place: int, within: str, name: str) -> None:
    """Remove a file, or a link, from a folder in an open folder, if the file is there.

    Raises:
        OSError: It is a folder, or it cannot be removed.
    """
    with suppress(FileNotFoundError), open_folder(place, within) as parent:
        os.unlink(name, dir_fd=parent)


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
    # Some numbers are too large to seek to.
    os.lseek(handle, min(start, os.fstat(handle).st_size), os.SEEK_SET)
    while start < end and (piece := os.read(handle, min(end - start, _BLOCK))):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def list_paths(root: Path, top: str = "", *, most: int) -> tuple[list[str], bool]:
    """Find the files below a folder by their paths, in order; links and what begins with a dot are left out.

    Args:
        root: The folder.
        top: The path of a folder in it to begin with.
        most: How many files and folders are looked at.

    Returns:
        The paths below `root`, and whether there is more than was looked at.

    Raises:
        OSError: The folder to begin with cannot be read.
    """
    names: list[str] = []
    folders = [top]
    seen = 0
    while folders:
        inside = folders.pop()
        try:
            with open_path(root, inside, folder=True) as handle:
                with os.scandir(handle if handle != -1 else root / inside) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > most:
                            return sorted(names), True
                        if entry.name.startswith("."):
                            continue
                        name = f"{inside}/{entry.name}" if inside else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(name)
                        elif entry.is_file(follow_symlinks=False):
                            names.append(name)
        except OSError:
            if inside == top:
                raise
    return sorted(names), False
