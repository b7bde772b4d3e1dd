"""Workspaces: what a model is to have before its eyes in each request, and what never enters the history."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from rxloop.errors import ConfigurationError
from rxloop.protocols import Workspace
from rxloop.records import Rendered, WorkspacePart
from rxloop.stream.threads import in_thread

Kind = Literal["static", "live"]


class TextWorkspace:
    """A text that stays as it is, or that is set anew from time to time.

    Args:
        text: What it shows.
        title: A line above it.
        kind: `static` stands right behind the system prompt, where a provider keeps it in its cache for as long as it
            does not change; `live` stands at the end of the request.
    """

    def __init__(self, text: str = "", *, title: str = "", kind: Kind = "static") -> None:
        self.text = text
        self._title = title
        self._kind: Kind = kind

    def render(self) -> Sequence[WorkspacePart]:
        """The text, as one part; nothing if it is empty."""
        return (WorkspacePart(self.text, self._title, self._kind),) if self.text.strip() else ()


class FolderWorkspace:
    """The text files of a folder, read anew for each request; those that are too long are cut in the middle.

    Args:
        path: The folder.
        patterns: Which files, as glob patterns over their paths below the folder.
        exclude: Which not; what begins with a dot is left out in any case.
        max_bytes: What one file may take.
        max_total: What all may take; of the files beyond it only the names are shown.
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
        kind: Kind = "live",
    ) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is no folder")
        self._patterns = tuple(patterns)
        self._exclude = tuple(exclude)
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._kind: Kind = kind

    async def render(self) -> Sequence[WorkspacePart]:
        """The files, in the order of their paths, each as one part; they are read in a thread."""
        return await in_thread(self._render)

    def _render(self) -> list[WorkspacePart]:
        parts: list[WorkspacePart] = []
        room = self._max_total
        for name, file in self._files():
            text = _read(file, min(self._max_bytes, room)) if room > 0 else None
            if text is None:
                parts.append(WorkspacePart("(not shown: it is no text, or there is no room left)", name, self._kind))
                continue
            room -= len(text.encode())
            parts.append(WorkspacePart(text, name, self._kind))
        return parts

    def _files(self) -> Iterator[tuple[str, Path]]:
        # A link may lead out of the folder, or in circles.
        found = (file for file in self.path.rglob("*") if file.is_file() and not file.is_symlink())
        for name, file in sorted((file.relative_to(self.path).as_posix(), file) for file in found):
            hidden = any(part.startswith(".") for part in name.split("/"))
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns)
            if wanted and not hidden and not any(fnmatch.fnmatch(name, pattern) for pattern in self._exclude):
                yield name, file


class Scratchpad:
    """Notes by name that tools write, and that the model has before its eyes from then on.

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
        """The notes, as one live part; nothing if there are none."""
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
        """The parts of all of them."""
        return [part for each in self._workspaces for part in await parts_of(each)]


async def parts_of(workspace: Workspace) -> list[WorkspacePart]:
    """What a workspace shows now; a plain text is one live part."""
    made = workspace.render()
    return as_parts(await made if inspect.isawaitable(made) else made)


def as_parts(rendered: Rendered) -> list[WorkspacePart]:
    """What was rendered, as parts; empty ones are left out."""
    found = [WorkspacePart(rendered)] if isinstance(rendered, str) else list(rendered)
    return [part for part in found if part.text.strip()]


def text_of_parts(found: Sequence[WorkspacePart], kind: Kind) -> str:
    """The parts of one kind as one text; empty if there are none."""
    texts = [f"## {part.title}\n{part.text}" if part.title else part.text for part in found if part.kind == kind]
    return "\n\n".join(texts)


def _read(file: Path, limit: int) -> str | None:
    """A text file, its middle left out where it is too long; None if it is no text or cannot be read."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if b"\0" in data[:8_000]:
        return None
    if len(data) <= limit:
        return data.decode("utf-8", "replace")
    half = limit // 2
    gone = f"\n[... {len(data) - 2 * half} bytes left out ...]\n"
    return data[:half].decode("utf-8", "ignore") + gone + data[len(data) - half :].decode("utf-8", "ignore")
