"""A folder of files as a workspace.

Others may write in the folder while it is read: the agent's own tools do. So nothing is believed of a file before it is
open. Each part of a path is opened below the one before it and never through a link; what is then read is what was
opened, if that is a regular file, at its two ends and never whole.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from rxloop.context.workspace import Kind
from rxloop.errors import ConfigurationError
from rxloop.pipeline.values import WorkspacePart
from rxloop.stream.threads import in_thread

_HEAD = 8_000
"""Bytes in which a NUL says that a file is not text."""
_MOST_SEEN = 50_000
"""Files and folders that are looked at, whether they are wanted or not."""
_BY_HANDLE = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
# Not blocking: to open a pipe would otherwise wait until somebody writes to it. Binary: on Windows alone.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class FolderWorkspace:
    """The text files of a folder, read again for each request; those that are too long are cut in the middle.

    Links are left out, wherever they lead, and so are pipes and devices.

    Args:
        path: The folder.
        patterns: Which files, as glob patterns over their paths below the folder.
        exclude: Which not; what begins with a dot is left out in any case.
        max_bytes: What one file may take.
        max_total: What all may take; of the files beyond it only the names are shown.
        max_files: How many files are shown; of the others only the number.
        kind: Where they stand in the request.

    Raises:
        ConfigurationError: There is no such folder.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        patterns: Sequence[str] = ("*",),
        *,
        exclude: Sequence[str] = (),
        max_bytes: int = 20_000,
        max_total: int = 200_000,
        max_files: int = 1_000,
        kind: Kind = "live",
    ) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is not a folder")
        self._patterns = tuple(patterns)
        self._exclude = tuple(exclude)
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._max_files = max_files
        self._kind: Kind = kind

    async def render(self) -> Sequence[WorkspacePart]:
        """Read the files in a thread, in the order of their paths; each is one part."""
        return await in_thread(self._render)

    def _render(self) -> list[WorkspacePart]:
        parts: list[WorkspacePart] = []
        room = self._max_total
        try:
            names, more = self._wanted_paths()
        except OSError as error:
            return [WorkspacePart(f"(the folder cannot be read: {error.strerror})", "", self._kind)]
        for name in names[: self._max_files]:
            text = _text(self.path, name, min(self._max_bytes, room)) if room > 0 else None
            if text is None:
                text = "(not shown: it is not text, or there is no room left)"
            else:
                room -= len(text.encode())
            parts.append(WorkspacePart(text, _shown(name), self._kind))
        rest = len(names) - self._max_files
        if rest > 0 or more:
            count = f"there are more than {_MOST_SEEN} files" if more else f"{rest} more files"
            parts.append(WorkspacePart(f"(not shown: {count})", "", self._kind))
        return parts

    def _wanted_paths(self) -> tuple[list[str], bool]:
        """Find the paths of the wanted files, in order, and whether there are more than were looked at."""
        names: list[str] = []
        folders = [""]
        seen = 0
        while folders:
            folder = folders.pop()
            with _opened(self.path, folder, os.O_DIRECTORY if _BY_HANDLE else 0) as handle:
                if handle is None:
                    if not folder:
                        raise FileNotFoundError(0, "it is not there")
                    continue
                with os.scandir(handle if _BY_HANDLE else self.path / folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > _MOST_SEEN:
                            return sorted(names), True
                        name = f"{folder}/{entry.name}" if folder else entry.name
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(name)
                        elif entry.is_file(follow_symlinks=False) and self._wants(name):
                            names.append(name)
        return sorted(names), False

    def _wants(self, name: str) -> bool:
        wanted = any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns)
        return wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in self._exclude)


@contextmanager
def _opened(root: Path, name: str, flags: int = 0) -> Generator[int | None]:
    """Open what lies at a path below a folder; None if it cannot be opened, or there is a link on the way."""
    handles: list[int] = []
    try:
        try:
            found = _open_below(root, name, flags, handles) if _BY_HANDLE else _open_by_path(root, name, handles)
        except OSError:
            found = None
        yield found
    finally:
        for handle in handles:
            os.close(handle)


def _open_below(root: Path, name: str, flags: int, handles: list[int]) -> int:
    # The folder itself may be a link: its owner has named it.
    handles.append(os.open(root, (_FLAGS & ~os.O_NOFOLLOW) | os.O_DIRECTORY))
    parts = name.split("/") if name else []
    for place, part in enumerate(parts, 1):
        last = place == len(parts)
        handles.append(os.open(part, _FLAGS | (flags if last else os.O_DIRECTORY), dir_fd=handles[-1]))
        os.close(handles.pop(-2))
    return handles[-1]


def _open_by_path(root: Path, name: str, handles: list[int]) -> int | None:
    """Open it where folders cannot be opened, as on Windows, and compare it afterwards; -1 for a folder."""
    path = root / name
    if path.resolve() != root.resolve().joinpath(*name.split("/")) or path.is_symlink():
        return None
    if path.is_dir():
        return -1
    handles.append(os.open(path, _FLAGS))
    return handles[-1] if os.path.samestat(os.fstat(handles[-1]), path.lstat()) else None


def _text(root: Path, name: str, limit: int) -> str | None:
    """Read a text file, without its middle where it is too long; None if it is not text or cannot be read."""
    with _opened(root, name) as handle:
        if handle is None:
            return None
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return None
            head = _read(handle, max(limit, _HEAD))
            if b"\0" in head[:_HEAD]:
                return None
            if found.st_size <= limit:
                return head[:limit].decode("utf-8", "replace")
            half = limit // 2
            os.lseek(handle, max(0, found.st_size - half), os.SEEK_SET)
            tail = _read(handle, half)
        except OSError:
            return None
    gone = f"\n[... {found.st_size - 2 * half} bytes left out ...]\n"
    return head[:half].decode("utf-8", "ignore") + gone + tail.decode("utf-8", "ignore")


def _read(handle: int, count: int) -> bytes:
    """Read so many bytes, or as many as there are."""
    pieces: list[bytes] = []
    while count > 0 and (piece := os.read(handle, min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _shown(name: str) -> str:
    """Write a path as one line of a heading: what is not a visible character is written as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
