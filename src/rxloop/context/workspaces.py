"""Text, folder and scratchpad workspaces."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Workspace, WorkspacePart
from rxloop.support.misuse import check_method, check_minimum
from rxloop.support.safe_files import list_paths, open_path, read_range
from rxloop.support.threads import call_user_function, run_in_thread

Kind = Literal["static", "live"]


class TextWorkspace:
    """Text that can be replaced at any time.

    Args:
        text: Content.
        title: Heading above the text.
        kind: `static` text follows the system prompt, so that providers can cache it. `live` text is at the end of the
            request.
    """

    def __init__(self, text: str = "", *, title: str = "", kind: Kind = "static") -> None:
        self.text = text
        self._title = title
        self._kind: Kind = kind

    def render(self) -> Sequence[WorkspacePart]:
        """Return a single text part, or an empty tuple for blank text."""
        return (WorkspacePart(self.text, self._title, self._kind),) if self.text.strip() else ()


class Scratchpad:
    """Named notes that tools can write and the model can see.

    Example:
        >>> pad = Scratchpad(max_length=4_000)
        >>> @tool
        ... def note(name: str, text: str) -> str:
        ...     "Keep a note where you will see it; an empty text removes it."
        ...     pad[name] = text
        ...     return "Noted."

    Args:
        notes: Initial notes.
        title: Heading above the notes.
        max_length: Maximum number of characters in all notes. The oldest notes are removed first.
    """

    def __init__(
        self, notes: Mapping[str, str] | None = None, *, title: str = "Scratchpad", max_length: int = 20_000
    ) -> None:
        check_minimum(0, max_length=max_length)
        self._notes: dict[str, str] = {}
        self._title = title
        self._max_length = max_length
        for name, text in (notes or {}).items():
            self[name] = text

    def __getitem__(self, name: str) -> str:
        return self._notes[name]

    def __setitem__(self, name: str, text: str) -> None:
        # Reinsert at the end, because the oldest entries are removed first.
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
        """Return all notes as a single live part, or an empty tuple."""
        text = "\n".join(f"{name}: {note}" for name, note in self._notes.items())
        return (WorkspacePart(text, self._title, "live"),) if text else ()


class CompositeWorkspace:
    """Several workspaces combined, in order.

    Args:
        *workspaces: Workspaces to combine.
    """

    def __init__(self, *workspaces: Workspace) -> None:
        for workspace in workspaces:
            check_method(
                "a workspace", workspace, "render", "an object with a render() method, such as TextWorkspace()"
            )
        self._workspaces = workspaces

    async def render(self) -> Sequence[WorkspacePart]:
        """Return all parts."""
        return [part for workspace in self._workspaces for part in await render_parts(workspace)]


async def render_parts(workspace: Workspace) -> list[WorkspacePart]:
    """Render a workspace. A string becomes one live part, and a custom synchronous `render` runs in a thread."""
    if is_quick(workspace):
        return as_parts(workspace, workspace.render())
    return as_parts(workspace, await call_user_function(workspace.render))


def is_quick(workspace: Workspace) -> bool:
    """Return True if `render` is one of ours and does not block."""
    return type(workspace) in (TextWorkspace, Scratchpad)


def as_parts(workspace: Workspace, rendered: object) -> list[WorkspacePart]:
    """Convert rendered content to parts, without empty ones.

    Raises:
        ConfigurationError: The content is neither a string nor a sequence of parts.
    """
    parts: list[Any] = [WorkspacePart(rendered)] if isinstance(rendered, str) else _to_list(rendered)
    if any(not isinstance(part, WorkspacePart) for part in parts):
        raise ConfigurationError(
            f"{type(workspace).__name__}.render() must return a string or a sequence of WorkspacePart, got "
            f'{rendered!r}; return "" if there is no content'
        )
    return [part for part in parts if part.text.strip()]


def _to_list(rendered: object) -> list[Any]:
    return list(cast("Iterable[Any]", rendered)) if isinstance(rendered, Iterable) else [rendered]


def join_parts(parts: Sequence[WorkspacePart], kind: Kind) -> str:
    """Join all parts with this kind into one text."""
    texts = [f"## {part.title}\n{part.text}" if part.title else part.text for part in parts if part.kind == kind]
    return "\n\n".join(texts)


_HEAD = 8_000
"""Number of bytes to search for NUL, which indicates a binary file."""

_MOST_SEEN = 50_000
"""Maximum number of files and folders to visit."""


class FolderWorkspace:
    """Text files in a folder. They are read again for each request, and long files are truncated in the middle.

    Symbolic links, pipes and devices are ignored.

    Args:
        path: Folder.
        patterns: Glob patterns for the paths to include, relative to the folder.
        exclude: Glob patterns to exclude. Hidden files are always excluded.
        max_bytes: Maximum size per file.
        max_total: Maximum total size. Only names are shown for further files.
        max_files: Maximum number of files. Further files are only counted.
        kind: Position in the request, `static` or `live`.

    Raises:
        ConfigurationError: The folder does not exist, or a limit is invalid.
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
        check_minimum(0, max_bytes=max_bytes, max_total=max_total, max_files=max_files)
        self._patterns = tuple(patterns)
        self._exclude = tuple(exclude)
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._max_files = max_files
        self._kind: Kind = kind

    async def render(self) -> Sequence[WorkspacePart]:
        """Read files in a thread and return one part per file, sorted by path."""
        return await run_in_thread(self._render)

    def _render(self) -> list[WorkspacePart]:
        parts: list[WorkspacePart] = []
        room = self._max_total
        try:
            paths, more = list_paths(self.path, max_entries=_MOST_SEEN)
        except OSError as error:
            return [WorkspacePart(f"(the folder cannot be read: {error.strerror})", "", self._kind)]
        names = [name for name in paths if self._wants(name)]
        for name in names[: self._max_files]:
            text = _text(self.path, name, min(self._max_bytes, room)) if room > 0 else None
            if text is None:
                text = "(not shown: it is not text, or there is no room left)"
            else:
                room -= len(text.encode())
            parts.append(WorkspacePart(text, _escape_path(name), self._kind))
        rest = len(names) - self._max_files
        if rest > 0 or more:
            count = f"there are more than {_MOST_SEEN} files" if more else f"{rest} more files"
            parts.append(WorkspacePart(f"(not shown: {count})", "", self._kind))
        return parts

    def _wants(self, name: str) -> bool:
        included = any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns)
        return included and not any(fnmatch.fnmatch(name, pattern) for pattern in self._exclude)


def _text(root: Path, name: str, limit: int) -> str | None:
    """Return a file's text, without its middle if it is too long, or None if it is unreadable or binary."""
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
    marker = f"\n[... {size - 2 * half} bytes left out ...]\n"
    return head[:half].decode("utf-8", "ignore") + marker + tail.decode("utf-8", "ignore")


def _escape_path(name: str) -> str:
    """Escape non-printable characters in a path."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
