"""A line below what a run writes, that is overwritten again and again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rxloop.cli.visible import shown

_ERASE = "\x1b[J"
"""Everything from the cursor on: after the cursor there is nothing but the line."""
_BELOW = "\x1bD\x1b[A\x1b7\x1b[B\r"
"""Make sure that there is a line below, remember where the cursor is, and go to its beginning.

By moves that a screen which scrolls does not upset: a place that is remembered before the screen scrolls is the wrong
one afterwards.
"""
_HERE = "\x1b7"
_BACK = "\x1b8"


class StatusLine:
    """The line, and where the cursor stands.

    The text streams on above it. Whoever writes to the terminal does so inside `aside`, which takes the line away and
    puts it back below what was written.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text: Text | None = None
        self.column = 0
        """Where the cursor stands, from 0 on."""

    @property
    def shown(self) -> bool:
        """Whether there is a line to be taken away."""
        return self._text is not None

    def show(self, text: Text) -> None:
        """Show this line in the place of the one that is there."""
        self._erase()
        self._text = shown(text)
        self._draw()

    def begin(self) -> None:
        """Note that the cursor is at the beginning of a line."""
        self.column = 0

    def hide(self) -> None:
        """Take the line away, for good."""
        self._erase()
        self._text = None

    @contextmanager
    def aside(self, written: Text | str) -> Generator[None]:
        """Write something to the terminal that the line must not be mixed up with."""
        self._erase()
        yield
        self._moved(str(written))
        self._draw()

    def _moved(self, text: str) -> None:
        """Follow the cursor, to know when it stands after the last column."""
        _, end, last = text.rpartition("\n")
        column = 0 if end else self.column
        width = self._console.width
        for char in last:
            cells = 8 - column % 8 if char == "\t" else cell_len(char)
            column = column + cells if column + cells <= width else cells
        self.column = column

    def _erase(self) -> None:
        if self._text is not None:
            self._write(_ERASE)

    def _draw(self) -> None:
        width = self._console.width
        # Behind the last column a terminal waits for the next letter before it breaks the line, and forgets that when
        # the cursor is moved: there is no line then until something more is written.
        if self._text is None or self.column >= width:
            return
        line = self._text.copy()
        line.truncate(width - 1, overflow="ellipsis")
        with self._console.capture() as drawn:
            self._console.print(line, end="", soft_wrap=True)
        self._write(f"{_BELOW if self.column else _HERE}{drawn.get()}{_BACK}")

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
