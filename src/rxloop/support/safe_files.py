"""File access under a root folder that never follows symbolic links."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

HAS_DIR_FD = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
"""True if paths can be opened relative to an open folder. This is not possible on Windows."""

# Non-blocking, because opening a pipe would wait for a writer. Binary mode only exists on Windows.
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
    """Open a file or folder under a root folder for reading. On Windows, the handle of a folder is -1.

    Args:
        root: Root folder. It may be a symbolic link itself, because its owner chose it.
        name: Relative path with slashes. If empty, the root folder is opened.
        folder: Whether to open a folder instead of a file.

    Raises:
        OSError: The path does not exist, has the wrong type, or contains a symbolic link.
    """
    handle = _open_relative(root, name, folder) if HAS_DIR_FD else _open_by_path(root, name)
    try:
        if not folder and (handle == -1 or not stat.S_ISREG(os.fstat(handle).st_mode)):
            raise OSError(f"{name} is not a file")
        yield handle
    finally:
        if handle != -1:
            os.close(handle)


def _open_relative(root: Path, name: str, folder: bool) -> int:
    handle = os.open(root, os.O_RDONLY | _FOLDER)
    parts = name.split("/") if name else []
    for depth, part in enumerate(parts, 1):
        parent = handle
        try:
            handle = os.open(part, _FLAGS | (_FOLDER if folder or depth < len(parts) else 0), dir_fd=parent)
        finally:
            os.close(parent)
    return handle


def _open_by_path(root: Path, name: str) -> int:
    """Open a file on a platform without folder handles. Return -1 for a folder.

    Raises:
        OSError: The path contains a symbolic link, or the file was replaced while it was being opened.
    """
    path = root / name
    if path.resolve() != root.resolve().joinpath(*name.split("/")) or path.is_symlink():
        raise OSError(f"{name} must not contain a symbolic link")
    if path.is_dir():
        return -1
    handle = os.open(path, os.O_RDONLY | _FLAGS)
    if os.path.samestat(os.fstat(handle), path.lstat()):
        return handle
    os.close(handle)
    raise OSError(f"{name} was replaced while it was being opened")


@contextmanager
def open_folder(parent: int, name: str, *, create: bool = False) -> Generator[int]:
    """Open a subfolder using a folder handle. If `create` is set, missing folders are created.

    Raises:
        OSError: The folder does not exist, or it is a symbolic link or a file.
    """
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    handle = os.open(name, _FLAGS | _FOLDER, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def open_file(root: int, folder: str, name: str, flags: int) -> Generator[int]:
    """Open a file using a folder handle. If `O_CREAT` is set, the file and its folder are created.

    Raises:
        OSError: The file does not exist, or it is a symbolic link or not a regular file.
    """
    with open_folder(root, folder, create=bool(flags & os.O_CREAT)) as parent:
        handle = os.open(name, flags | _FLAGS, 0o600, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{folder}/{name} is not a file")
        yield handle
    finally:
        os.close(handle)


def remove_file(root: int, folder: str, name: str) -> None:
    """Remove a file or symbolic link from a subfolder, if it exists.

    Raises:
        OSError: The path is a folder, or it cannot be removed.
    """
    with suppress(FileNotFoundError), open_folder(root, folder) as parent:
        os.unlink(name, dir_fd=parent)


def write_range(handle: int, data: bytes, start: int) -> None:
    """Write data and truncate the file after it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, start)
        view, start = view[written:], start + written
    os.ftruncate(handle, start)


def read_range(handle: int, start: int, end: int) -> bytes:
    """Read a range of bytes. The result is shorter if the file ends before."""
    pieces: list[bytes] = []
    # `lseek` rejects very large positions.
    os.lseek(handle, min(start, os.fstat(handle).st_size), os.SEEK_SET)
    while start < end and (piece := os.read(handle, min(end - start, _BLOCK))):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def list_paths(root: Path, top: str = "", *, max_entries: int) -> tuple[list[str], bool]:
    """List the files under a folder. Symbolic links and names that start with a dot are skipped.

    Args:
        root: Root folder.
        top: Relative path of the subfolder to list.
        max_entries: Maximum number of files and folders to examine.

    Returns:
        Sorted paths relative to `root`, and True if the limit was exceeded.

    Raises:
        OSError: The folder `top` cannot be read.
    """
    names: list[str] = []
    folders = [top]
    count = 0
    while folders:
        folder = folders.pop()
        try:
            with open_path(root, folder, folder=True) as handle:
                with os.scandir(handle if handle != -1 else root / folder) as entries:
                    for entry in entries:
                        count += 1
                        if count > max_entries:
                            return sorted(names), True
                        if entry.name.startswith("."):
                            continue
                        name = f"{folder}/{entry.name}" if folder else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(name)
                        elif entry.is_file(follow_symlinks=False):
                            names.append(name)
        except OSError:
            if folder == top:
                raise
    return sorted(names), False
