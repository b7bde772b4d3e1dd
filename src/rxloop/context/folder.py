"""A folder of files as a workspace.

Others may write in the folder while it is read: the agent's own tools do. A file is read at its two ends, never whole.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from rxloop.context.workspace import Kind
from rxloop.errors import ConfigurationError
from rxloop.pipeline.values import WorkspacePart
from rxloop.stream.below import opened, paths_below, read_at
from rxloop.stream.threads import in_thread

_HEAD = 8_000
"""Bytes in which a NUL says that a file is not text."""
_MOST_SEEN = 50_000
"""Files and folders that are looked at, whether they are wanted or not."""


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
            found, more = paths_below(self.path, most=_MOST_SEEN)
        except OSError as error:
            return [WorkspacePart(f"(the folder cannot be read: {error.strerror})", "", self._kind)]
        names = [name for name in found if self._wants(name)]
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

    def _wants(self, name: str) -> bool:
        wanted = any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns)
        return wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in self._exclude)


def _text(root: Path, name: str, limit: int) -> str | None:
    """Read a text file, without its middle where it is too long; None if it is not text or cannot be read."""
    try:
        with opened(root, name) as handle:
            size = os.fstat(handle).st_size
            head = read_at(handle, 0, max(limit, _HEAD))
            if b"\0" in head[:_HEAD]:
                return None
            if size <= limit:
                return head[:limit].decode("utf-8", "replace")
            half = limit // 2
            tail = read_at(handle, max(0, size - half), size)
    except OSError:
        return None
    gone = f"\n[... {size - 2 * half} bytes left out ...]\n"
    return head[:half].decode("utf-8", "ignore") + gone + tail.decode("utf-8", "ignore")


def _shown(name: str) -> str:
    """Write a path as one line of a heading: what is not a visible character is written as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
