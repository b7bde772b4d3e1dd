"""Workspaces: what a model sees in each request and what never enters the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, cast

from rxloop.pipeline.seams import Workspace
from rxloop.pipeline.values import Rendered, WorkspacePart
from rxloop.stream.within import called

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
    return as_parts(await called(workspace.render))


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
