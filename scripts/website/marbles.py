"""Parser for marble diagrams in docstrings.

A diagram is an indented block that follows a line `::`. Each line contains a label, at least two spaces, and a stream.
All lines share a time axis, which starts with the stream of the first line.

    in            --a--(b,c)--d(1)--|
    handler            ..e
    of_type(a)    --a---------------|      the rest of the line is the legend

* `-`: Time passes.
* `.`: Time passes while work is active.
* `|` and `#`: The stream completes or fails. A stream that ends with `-` continues.
* `(a,b)`: Simultaneous marbles.
* Other characters: A marble, which can have a value, such as `d(1)`. Braces allow special characters in its name.
* Two spaces: The stream ends. Another stream can follow on the same line.
* `[label]` on a separate line: An operator. Without such lines, an operator is drawn above each line whose label is
  `out` or a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^(?P<indent>[ ]*)::\n\n(?P<body>(?:(?P=indent)[ ]{4}.*\n|\n)*(?P=indent)[ ]{4}.*)$", re.MULTILINE)
_BOX = re.compile(r"\[(?P<label>[^\]]+)\]")
_LINE = re.compile(r"(?P<label>\S+(?: \S+)*)(?P<gap> {2,})(?P<stream>\S.*)")
_LEGEND = re.compile(r"(?<=\S) {2,}(?P<text>[^-.(|# ].*)$")
_GROUP = re.compile(r"\((?P<marbles>[^()|#]*)(?P<end>[|#]?)\)")
_MARBLE = re.compile(r"(?P<name>(?:\{[^}]*\}|[^\s\-.|#(){},])+)(?:\((?P<value>[^)]*)\))?")


class DiagramError(ValueError):
    """Invalid diagram, with its position in the message."""


def _make_error(problem: str, line: str, column: int = 0) -> DiagramError:
    return DiagramError(f"{problem}:\n    {line}\n    {' ' * column}^")


@dataclass(frozen=True, slots=True)
class Instant:
    """Marbles at the same position on the time axis."""

    column: int
    marbles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Single stream, from its subscription to its end."""

    start: int
    stop: int
    end: str
    """`|` or `#`, `-` for a stream that continues, or an empty string if it stops after the last marble."""
    instants: tuple[Instant, ...] = ()
    work: tuple[tuple[int, int], ...] = ()
    """Column ranges of active work."""


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a diagram, with its label and streams."""

    label: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Operator box."""

    label: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """Lines and operators from top to bottom, and the legend."""

    name: str
    panels: tuple[tuple[Line | Box, ...], ...]
    """Panels of the diagram. Operators with different arguments are drawn in separate panels."""
    legend: tuple[str, ...]
    text: str


def split(docstring: str) -> tuple[str, str, str] | None:
    """Split a docstring into the text before its diagram, the diagram, and the text after it.

    Returns None if there is no diagram.

    Raises:
        DiagramError: There are multiple diagrams.
    """
    found = list(_BLOCK.finditer(docstring))
    if not found:
        return None
    if len(found) > 1:
        raise _make_error("a docstring must contain only one diagram", found[1]["body"].strip().split("\n")[0])
    indent = len(found[0]["indent"]) + 4
    lines = [line[indent:].rstrip() for line in found[0]["body"].split("\n")]
    return docstring[: found[0].start()], "\n".join(lines), docstring[found[0].end() :]


def parse(text: str, name: str) -> Diagram:
    """Parse a diagram.

    Args:
        text: Lines of the diagram.
        name: Operator name for the box above a line with the label `out`.

    Raises:
        DiagramError: The notation is invalid.
    """
    legend: list[str] = []
    rows = [_parse_row(line, legend) for line in text.split("\n") if line.strip()]
    first = next((row for row in rows if isinstance(row, _Raw)), None)
    if first is None or isinstance(rows[0], Box):
        raise _make_error("a diagram must begin with a stream", text.strip().split("\n")[0])
    read = [row if isinstance(row, Box) else Line(row.label, tuple(row.pieces(first.column))) for row in rows]
    return Diagram(name, tuple(_split_panels(read, name)), tuple(legend), text)


@dataclass(frozen=True, slots=True)
class _Raw:
    label: str
    stream: str
    column: int
    line: str

    def pieces(self, origin: int) -> Iterator[Piece]:
        if self.column < origin:
            raise _make_error("a stream must not begin before the stream of the first line", self.line, self.column)
        at = 0
        while at < len(self.stream):
            reader = _Reader(self, origin, at)
            at = reader.read()
            yield reader.piece()


def _parse_row(line: str, legend: list[str]) -> _Raw | Box:
    if box := _BOX.fullmatch(line.strip()):
        return Box(box["label"])
    if (found := _LEGEND.search(line)) and _LINE.fullmatch(line[: found.start()]):
        legend.append(found["text"])
        line = line[: found.start()]
    if (parts := _LINE.fullmatch(line)) is None:
        raise _make_error("a line must contain a label, at least two spaces, and a stream", line)
    return _Raw(parts["label"], parts["stream"], parts.start("stream"), line)


def _split_panels(rows: list[Line | Box], name: str) -> Iterator[tuple[Line | Box, ...]]:
    if any(isinstance(row, Box) for row in rows):
        yield tuple(rows)
        return
    lines = [row for row in rows if isinstance(row, Line)]
    inputs = [line for line in lines if not _is_output(line)]
    outputs = [line for line in lines if _is_output(line)]
    if not inputs or not outputs or lines != [*inputs, *outputs]:
        raise _make_error("inputs must be followed by outputs, which are labelled `out` or with a call", lines[0].label)
    for output in outputs:
        yield (*inputs, Box(name if output.label == "out" else output.label), output)


def _is_output(line: Line) -> bool:
    return line.label == "out" or "(" in line.label


@dataclass(slots=True)
class _Reader:
    """Parser for a single stream."""

    raw: _Raw
    origin: int
    at: int
    end: str = ""
    instants: list[Instant] = field(default_factory=list[Instant])
    work: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    start: int = field(init=False)
    stop: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.stop = self._column()

    def piece(self) -> Piece:
        return Piece(self.start, self.stop, self.end, tuple(self.instants), tuple(self.work))

    def read(self) -> int:
        """Parse the stream, and return the position of the next one."""
        stream = self.raw.stream
        while self.at < len(stream) and stream[self.at] != " ":
            if self.end in ("|", "#"):
                raise self._error("a stream must not continue after its end")
            self._read_element(stream[self.at])
        spaces = len(stream[self.at :]) - len(stream[self.at :].lstrip(" "))
        if spaces == 1:
            raise self._error("a stream must not contain a single space")
        if self.stop == self.start and not self.instants:
            raise self._error("a stream must not be empty")
        return self.at + spaces

    def _read_element(self, char: str) -> None:
        stream = self.raw.stream
        begin = self._column()
        self.end = char if char in "-|#" else ""
        if char in "-|#":
            self.at += 1
        elif char == ".":
            while self.at < len(stream) and stream[self.at] == ".":
                self.at += 1
            self.work.append((begin, self._column()))
        elif found := _GROUP.match(stream, self.at):
            self._add_instant(found["marbles"].split(",") if found["marbles"] else [], begin)
            self.end, self.at, self.stop = found["end"], found.end(), begin
            return
        elif found := _MARBLE.match(stream, self.at):
            if set(found["value"] or "") & set("|#,"):
                raise self._error("simultaneous marbles must be in the same parentheses, for example (a,b|)")
            self._add_instant([found[0]], begin)
            self.at = found.end()
        else:
            raise self._error("invalid marble")
        self.stop = begin if char in "|#" else self._column()

    def _add_instant(self, marbles: list[str], column: int) -> None:
        if not marbles or any(_MARBLE.fullmatch(marble) is None for marble in marbles):
            raise self._error("simultaneous marbles must be separated by commas")
        self.instants.append(Instant(column, tuple(marbles)))

    def _column(self) -> int:
        return self.raw.column + self.at - self.origin

    def _error(self, problem: str) -> DiagramError:
        return _make_error(problem, self.raw.line, self.raw.column + self.at)
