"""Opaque reasoning, signed or encrypted, which goes back to the vendor with the next request."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rxloop.providers.reading._calls import dumped
from rxloop.providers.reading._fields import text_of


class ReasoningDetails:
    """The `reasoning_details` of one answer: the pieces of a block are joined."""

    __slots__ = ("_blocks", "_text", "other_size", "text_size")

    def __init__(self) -> None:
        self.text_size = 0
        """The characters of the text of all blocks."""
        self.other_size = 0
        """About how many characters the blocks have besides their text."""
        self._blocks: list[dict[str, Any]] = []
        self._text = StringIO()
        """The text of the newest block."""

    def add(self, detail: dict[str, Any]) -> None:
        """Take a block, or a piece of the newest one."""
        last = self._blocks[-1] if self._blocks else None
        field = _text_field(detail)
        if (
            last is None
            or detail.get("type") == "reasoning.encrypted"
            or (last.get("type"), last.get("index")) != (detail.get("type"), detail.get("index"))
        ):
            self._join()
            self._blocks.append(dict(detail))
            self.other_size += len(dumped(detail))
        else:
            # Each piece names its block again, in more characters than it has text.
            changed = {name: value for name, value in detail.items() if value is not None and last.get(name) != value}
            last.update(changed)
            changed.pop(field, None)
            self.other_size += len(dumped(changed)) if changed else 0
        if piece := text_of(detail.get(field)):
            self._text.write(piece)
            self.text_size += len(piece)

    def finish(self) -> list[dict[str, Any]]:
        """Return the blocks at the end of the answer."""
        self._join()
        return self._blocks

    def _join(self) -> None:
        """Put the text of the newest block into it at once: piece by piece, each would copy all before it."""
        text = self._text.getvalue()
        if text:
            self._blocks[-1][_text_field(self._blocks[-1])] = text
            self._text = StringIO()


def _text_field(detail: dict[str, Any]) -> str:
    return "summary" if detail.get("type") == "reasoning.summary" else "text"
