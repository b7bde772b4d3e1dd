"""Thoughts as boxes on stderr, for the person who runs a server."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.box import ROUNDED
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from rxloop.support.text import to_one_line, to_visible
from rxloop.thinking.sessions.result import ThoughtResult

_SHOWN = 2_000
"""The characters of a thought that are shown."""
_WAITING = 1_000
"""Boxes that wait to be written; of more, the newest are left out."""
_GRACE = 1.0
"""Seconds that the end waits for the boxes that are still to be written."""


def logs_thoughts(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether thoughts are to be logged: unless `DISABLE_THOUGHT_LOGGING` is "true", in whatever case."""
    return environment.get("DISABLE_THOUGHT_LOGGING", "").lower() != "true"


class ThoughtLog:
    """Writes each thought as a box, in colours where stderr is a terminal that wants them.

    A thread of its own does so, while the block lasts: a reader of stderr that stands still holds up no answer.

    Example:
        >>> with ThoughtLog() as log:
        ...     server = mcp_server(runtime, sequential_thinking=ThinkingTools(on_thought=log))
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True, emoji=False, highlight=False)
        self._boxes: queue.Queue[ThoughtResult | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="thought log", daemon=True)

    def __call__(self, result: ThoughtResult) -> None:
        """Hand a thought to the thread that writes."""
        try:
            self._boxes.put_nowait(result)
        except queue.Full:
            return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._boxes.put(None, timeout=_GRACE)
        except queue.Full:
            return
        self.join(_GRACE)

    def join(self, timeout: float | None = None) -> None:
        """Wait until everything is written."""
        self._thread.join(timeout)

    def _write_all(self) -> None:
        try:
            while (result := self._boxes.get()) is not None:
                with self._console.capture() as captured:
                    self._console.print(box(result))
                self._write(captured.get())
        except (OSError, ValueError):
            # Nobody reads it any more.
            return

    def _write(self, text: str) -> None:
        stream = self._console.file
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):
            stream.write(text)
            return
        # Past Python's own buffer: a thread that hangs with its lock would break the end of the process.
        data = text.encode(self._console.encoding, "backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


def box(result: ThoughtResult) -> Panel:
    """A thought in a box that says what kind of thought it is."""
    thought = to_visible(result.thought.thought)
    if len(thought) > _SHOWN:
        thought = f"{thought[:_SHOWN]}… and {len(thought) - _SHOWN:,} more characters"
    kind, beside, colour = _kind(result)
    number = f"{result.thought.thought_number}/{result.thought.total_thoughts}"
    title = Text.assemble((kind, colour), f" {number}{f' ({beside})' if beside else ''}")
    return Panel(Text(thought), title=title, title_align="left", border_style=colour, box=ROUNDED)


def _kind(result: ThoughtResult) -> tuple[str, str, str]:
    """What kind of thought it is, what it refers to, and the colour of its box."""
    thought, placed = result.thought, result.placed
    if thought.is_revision or thought.revises_thought is not None:
        target = "" if thought.revises_thought is None else f"revising thought {thought.revises_thought}"
        return "🔄 Revision", target, "yellow"
    name = "" if placed.branch is None else f"ID: {to_visible(to_one_line(placed.branch))}"
    if placed.branch is not None or thought.branch_from_thought is not None:
        origin = "" if thought.branch_from_thought is None else f"from thought {thought.branch_from_thought}"
        return "🌿 Branch", ", ".join(filter(None, (origin, name))), "green"
    return "💭 Thought", "", "blue"
