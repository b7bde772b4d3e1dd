"""Drawing of marble diagrams as SVG images.

Lines and labels use the text colour of the page, so that the images fit light and dark themes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from marbles import Box, Diagram, Line, Piece

CELL = 12
"""Width of a diagram column in pixels."""
ROW = 42
MARBLE = 22
PANEL_GAP = 22
BOX_HEIGHT = 28
MARGIN = 8
CHARACTER = 7.3
"""Character width inside marbles, in pixels."""
PALETTE = ("#2f6fb2", "#b3541e", "#2e7d4f", "#7b4fb5", "#b0305c", "#0f7680", "#6b6a12", "#5a6472")
"""Colours with sufficient contrast to white text."""
ERROR = "#d03a3a"

STYLE = f"""
.marbles {{ max-width: 100%; height: auto; color: inherit; overflow: visible; }}
.marbles text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: currentColor; }}
.marbles .marble text {{ font-size: 12px; fill: #fff; text-anchor: middle; }}
.marbles .operator text {{ text-anchor: middle; }}
.marbles .operator rect {{ fill: currentColor; fill-opacity: 0.06; stroke: currentColor; stroke-opacity: 0.55; }}
.marbles .legend {{ opacity: 0.75; font-size: 12px; }}
.marbles .axis {{ stroke: currentColor; stroke-width: 1.5; fill: none; opacity: 0.65; }}
.marbles .work {{ stroke: currentColor; stroke-width: 3; stroke-dasharray: 0.1 6; stroke-linecap: round; }}
.marbles .completion {{ stroke: currentColor; stroke-width: 2.5; }}
.marbles .error {{ stroke: {ERROR}; stroke-width: 3; stroke-linecap: round; fill: none; }}
"""
_GROUND = """.marbles { color: #1f2328; }
@media (prefers-color-scheme: dark) { .marbles { color: #e6edf3; } }
"""


def make_svg(diagram: Diagram) -> str:
    """Create an SVG element for pages that include `STYLE`. It contains no line breaks."""
    return _Drawing(diagram).make_svg()


def make_svg_file(diagram: Diagram) -> str:
    """Create a standalone SVG file."""
    head, rest = _Drawing(diagram).make_svg().split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}{_GROUND}</style>{rest}\n'


class _Drawing:
    def __init__(self, diagram: Diagram) -> None:
        self._diagram = diagram
        self._colours = _choose_colours(diagram)
        lines = [row for panel in diagram.panels for row in panel if isinstance(row, Line)]
        labels = [line.label for line in lines if "(" not in line.label]
        self._origin = MARGIN + 16 + round(max(map(len, labels), default=0) * 7.9)
        self._right = max(
            [self._x(piece.stop) + CELL for line in lines for piece in line.pieces]
            + [
                self._x(at.column) + _marble_width(m)
                for line in lines
                for p in line.pieces
                for at in p.instants
                for m in at.marbles
            ]
        )
        boxes = [row.label for panel in diagram.panels for row in panel if isinstance(row, Box)]
        self._right = max(self._right, *(self._origin + len(label) * 7.9 + 24 for label in boxes))
        self._right = max(self._right, *(MARGIN + len(text) * 7.3 for text in diagram.legend), 0)

    def make_svg(self) -> str:
        y = float(MARGIN)
        parts: list[str] = []
        for number, panel in enumerate(self._diagram.panels):
            y += PANEL_GAP if number else 0
            for row in panel:
                height = BOX_HEIGHT + 4 if isinstance(row, Box) else _line_height(row)
                parts.extend(self._box(row, y) if isinstance(row, Box) else self._line(row, y + height / 2))
                y += height
        for text in self._diagram.legend:
            y += 18
            parts.append(f'<text class="legend" x="{MARGIN}" y="{y:g}">{escape(text)}</text>')
        width, height = f"{self._right + MARGIN:g}", f"{y + MARGIN:g}"
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        label = escape(f"Marble diagram of {self._diagram.name}", quote=True)
        return f'<svg class="marbles" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'

    def _x(self, column: int) -> float:
        return self._origin + MARBLE / 2 + column * CELL

    def _box(self, box: Box, y: float) -> Iterator[str]:
        left, width = self._origin, self._right - self._origin
        yield f'<g class="operator"><rect x="{left:g}" y="{y + 2:g}" width="{width:g}" height="{BOX_HEIGHT}" rx="5"/>'
        yield f'<text x="{left + width / 2:g}" y="{y + 2 + BOX_HEIGHT / 2 + 4.5:g}">{escape(box.label)}</text></g>'

    def _line(self, line: Line, y: float) -> Iterator[str]:
        if "(" not in line.label:
            yield f'<text x="{MARGIN}" y="{y + 4.5:g}">{escape(line.label)}</text>'
        for piece in line.pieces:
            yield from self._axis(piece, y)
            for at in piece.instants:
                first = y - (len(at.marbles) - 1) * (MARBLE + 2) / 2
                for number, marble in enumerate(at.marbles):
                    yield from self._marble(marble, self._x(at.column), first + number * (MARBLE + 2))

    def _axis(self, piece: Piece, y: float) -> Iterator[str]:
        start = self._x(piece.start) - MARBLE / 2
        stop = self._x(piece.stop if piece.end else piece.instants[-1].column if piece.instants else piece.stop)
        for begin, end in piece.work:
            left = self._x(begin)
            yield f'<path class="work" d="M{left:g} {y:g}H{max(self._x(end) - MARBLE / 2 - 3, left + 1):g}"/>'
            start = self._x(end) if begin == piece.start else start
        yield f'<path class="axis" d="M{min(start, stop):g} {y:g}H{stop:g}"/>'
        if piece.end == "|":
            half = _piece_height(piece) / 2 - 6
            yield f'<path class="completion" d="M{stop:g} {y - half:g}V{y + half:g}"/>'
        elif piece.end == "#":
            yield f'<path class="error" d="M{stop - 7:g} {y - 7:g}l14 14m0 -14l-14 14"/>'
        elif piece.end == "-":
            yield f'<path class="axis" d="M{stop - 6:g} {y - 5:g}L{stop:g} {y:g}L{stop - 6:g} {y + 5:g}"/>'

    def _marble(self, marble: str, x: float, y: float) -> Iterator[str]:
        width = _marble_width(marble)
        left, half = x - MARBLE / 2, MARBLE / 2
        yield f'<g class="marble"><rect x="{left:g}" y="{y - half:g}" width="{width:g}" height="{MARBLE}" rx="{half:g}"'
        yield f' fill="{self._colours[_colour_group(marble)]}"/>'
        yield f'<text x="{left + width / 2:g}" y="{y + 4:g}">{escape(marble)}</text></g>'


def _marble_width(marble: str) -> float:
    return max(MARBLE, len(marble) * CHARACTER + 10)


def _piece_height(piece: Piece) -> float:
    count = max((len(at.marbles) for at in piece.instants), default=1)
    return ROW + (count - 1) * (MARBLE + 2)


def _line_height(line: Line) -> float:
    return max(map(_piece_height, line.pieces))


def _colour_group(marble: str) -> str:
    """Return the marble name without numbers, primes and values. Marbles with the same result have the same colour."""
    return re.sub(r"\(.*|['\d]+$", "", re.sub(r"\(.*", "", marble)) or marble


def _choose_colours(diagram: Diagram) -> dict[str, str]:
    kinds: dict[str, None] = {}
    for panel in diagram.panels:
        for row in panel:
            for piece in row.pieces if isinstance(row, Line) else ():
                for at in piece.instants:
                    kinds.update((_colour_group(marble), None) for marble in at.marbles)
    return {kind: PALETTE[number % len(PALETTE)] for number, kind in enumerate(kinds)}
