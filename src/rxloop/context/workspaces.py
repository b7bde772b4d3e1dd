"""Text, folder and scratchpad workspaces."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, cast

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Rendered, Workspace, WorkspacePart
from rxloop.support.safe_files import list_paths, open_path, read_range
from rxloop.support.threads import call_user_function, run_in_thread

Kind = Literal["static", "live"]


class TextWorkspace:
    """A text that stays as it is, or is replaced from time to time.

    Args:
        text: What it shows.
        title: A line above it.
        kind: `static` comes right after the system prompt, where a provider keeps it in its cache for as long as it
            does not change; `live` stands at the end of the request.
    """

    def __init__(self, text: str = "", *, title: str = "", kind: Kind = "static") -> None:
        self.text = text
        self._title = title
        self._kind: Kind = kind

    def render(self) -> Sequence[WorkspacePart]:
        """Render the text as one part; nothing if it is empty."""
        return (WorkspacePart(self.text, self._title, self._kind),) if self.text.strip() else ()


class Scratchpad:
    """Named notes that tools write and that the model sees from then on.

    Example:
        >>> pad = Scratchpad(max_length=4_000)
        >>> @tool
        ... def note(name: str, text: str) -> str:
        ...     "Keep a note where you will see it; an empty text removes it."
        ...     pad[name] = text
        ...     return "Noted."

    Args:
        notes: What it has to begin with.
        title: A line above the notes.
        max_length: Characters of all notes together; of more, the oldest go.
    """

    def __init__(
        self, notes: Mapping[str, str] | None = None, *, title: str = "Scratchpad", max_length: int = 20_000
    ) -> None:
        self._notes: dict[str, str] = {}
        self._title = title
        self._max_length = max_length
        for name, text in (notes or {}).items():
            self[name] = text

    def __getitem__(self, name: str) -> str:
        return self._notes[name]

    def __setitem__(self, name: str, text: str) -> None:
        # To the end, so that what was written last is the last to go.
        self._notes.pop(name, None)
        if text:
            self._notes[name] = text
        while len(self._notes) > 1 and sum(map(len, self._notes.values())) > self._max_length:
            del self._notes[next(iter(self._notes))]

    def __delitem__(self, name: str) -> None:
        del self._notes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._notes

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)

    def render(self) -> Sequence[WorkspacePart]:
        """Render the notes as one live part; nothing if there are none."""
        text = "\n".join(f"{name}: {note}" for name, note in self._notes.items())
        return (WorkspacePart(text, self._title, "live"),) if text else ()


class CompositeWorkspace:
    """Several workspaces as one; their parts keep the order.

    Args:
        *workspaces: What it is made of.
    """

    def __init__(self, *workspaces: Workspace) -> None:
        self._workspaces = workspaces

    async def render(self) -> Sequence[WorkspacePart]:
        """Render the parts of all of them."""
        return [part for workspace in self._workspaces for part in await parts_of(workspace)]


async def parts_of(workspace: Workspace) -> list[WorkspacePart]:
    """Render a workspace; a plain text is one live part. A plain `render` of the user runs in a thread."""
    if is_quick(workspace):
        return as_parts(cast("Rendered", workspace.render()))
    return as_parts(await call_user_function(workspace.render))


def is_quick(workspace: Workspace) -> bool:
    """Return whether `render` is ours, plain, and done at once."""
    return type(workspace) in (TextWorkspace, Scratchpad)


def as_parts(rendered: Rendered) -> list[WorkspacePart]:
    """Turn what was rendered into parts; empty ones are left out."""
    found = [WorkspacePart(rendered)] if isinstance(rendered, str) else list(rendered)
    return [part for part in found if part.text.strip()]


def text_of_parts(found: Sequence[WorkspacePart], kind: Kind) -> str:
    """Join the parts of one kind into one text; empty if there are none."""
    texts = [f"## {part.title}\n{part.text}" if part.title else part.text for part in found if part.kind == kind]
    return "\n\n".join(texts)


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
        return await run_in_thread(self._render)

    def _render(self) -> list[WorkspacePart]:
        parts: list[WorkspacePart] = []
        room = self._max_total
        try:
            found, more = list_paths(self.path, max_entries=_MOST_SEEN)
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
        with open_path(root, name) as handle:
            size = os.fstat(handle).st_size
            head = read_range(handle, 0, max(limit, _HEAD))
            if b"\0" in head[:_HEAD]:
                return None
            if size <= limit:
                return head[:limit].decode("utf-8", "replace")
            half = limit // 2
            tail = read_range(handle, max(0, size - half), size)
    except OSError:
        return None
    gone = f"\n[... {size - 2 * half} bytes left out ...]\n"
    return head[:half].decode("utf-8", "ignore") + gone + tail.decode("utf-8", "ignore")


def _shown(name: str) -> str:
    """Write a path as one line of a heading: what is not a visible character is written as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
