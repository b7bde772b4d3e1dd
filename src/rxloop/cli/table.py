"""Columns of text, as wide as the terminal lets them be."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rxloop.cli.terminal import width

_GAP = 2
"""The spaces between two columns."""
_LEAST = 20
"""The columns of the terminal that the last one gets, however wide the others are."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int, str], str] = lambda _place, _cell: "",
    *,
    wrap: bool = False,
) -> Text:
    """Write rows below their head; the last column takes what room is left.

    Args:
        head: The names of the columns.
        rows: As many cells in each.
        style: The style of a cell, by its place in the row and its text.
        wrap: Break what is too long for the last column, and do not cut it.
    """
    widths = [max(cell_len(line[place]) for line in (head, *rows)) for place in range(len(head))]
    before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(width() - before, _LEAST))
    text = Text()
    for number, line in enumerate((head, *rows)):
        row = Text()
        for place, cell in enumerate(line):
            shown = _fitted(cell, widths[place], before if wrap and place == len(widths) - 1 else None)
            row.append(shown, style(place, cell) if number else "dim")
            row.append(" " * (widths[place] - cell_len(shown) + _GAP) if place < len(widths) - 1 else "")
        row.rstrip()
        text.append_text(row).append("\n")
    return text


def _fitted(cell: str, size: int, indent: int | None) -> str:
    """Fit a cell into a width: cut it, or break it where there is an indent for its further lines."""
    if cell_len(cell) <= size:
        return cell
    if indent is None:
        return set_cell_size(cell, size - 1).rstrip() + "…"
    return f"\n{' ' * indent}".join(textwrap.wrap(cell, size))
