"""Reads the marble diagrams of docstrings.

A diagram is the indented block behind a line `::`. Each of its lines is a label, at least two spaces, and a stream on
the time axis that all lines share; the first line says where that axis begins.

    in            --a--(b,c)--d(1)--|
    handler            ..e
    of_type(a)    --a---------------|      what stands behind it is the legend

`-` is time and `.` time in which work is going on. Any other run of characters is one marble; it may have a value in
parentheses, and braces keep what is in them together. Parentheses behind `-` hold what happens at one instant, with
commas between. `|` completes, `#` fails, and a stream that ends with `-` goes on. Two spaces end a stream; another one
may follow on the same line. `[label]` on a line of its own is an operator. Where there is none, the operator stands
before each line whose label is `out` or a call.
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
    """A diagram cannot be read; the message shows where."""


def _wrong(what: str, line: str, column: int = 0) -> DiagramError:
    return DiagramError(f"{what}:\n    {line}\n    {' ' * column}^")


@dataclass(frozen=True, slots=True)
class Instant:
    """What happens at one place of the time axis: one marble or several."""

    column: int
    marbles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One stream from its subscription to its end."""

    start: int
    stop: int
    end: str
    """`|` or `#`; `-` if it goes on, and nothing if it stops with its last marble."""
    instants: tuple[Instant, ...] = ()
    work: tuple[tuple[int, int], ...] = ()
    """Where it is at work, from column to column."""


@dataclass(frozen=True, slots=True)
class Line:
    """A label and its streams."""

    label: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """An operator."""

    label: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """What a picture shows: lines and operators from top to bottom, and the legend."""

    name: str
    panels: tuple[tuple[Line | Box, ...], ...]
    """More than one if the operator is shown with several arguments."""
    legend: tuple[str, ...]
    text: str


def split(docstring: str) -> tuple[str, str, str] | None:
    """What stands before a diagram, the diagram, and what stands behind it; None where there is no diagram.

    Raises:
        DiagramError: There is more than one.
    """
    found = list(_BLOCK.finditer(docstring))
    if not found:
        return None
    if len(found) > 1:
        raise _wrong("a docstring has one diagram, and this is the second", found[1]["body"].strip().split("\n")[0])
    indent = len(found[0]["indent"]) + 4
    lines = [line[indent:].rstrip() for line in found[0]["body"].split("\n")]
    return docstring[: found[0].start()], "\n".join(lines), docstring[found[0].end() :]


def parse(text: str, name: str) -> Diagram:
    """Read a diagram.

    Args:
        text: The lines of the diagram.
        name: The operator, for the box over a line that is called `out`.

    Raises:
        DiagramError: It does not follow the notation.
    """
    legend: list[str] = []
    rows = [_row(line, legend) for line in text.split("\n") if line.strip()]
    first = next((row for row in rows if isinstance(row, _Raw)), None)
    if first is None or isinstance(rows[0], Box):
        raise _wrong("a diagram begins with a stream", text.strip().split("\n")[0])
    read = [row if isinstance(row, Box) else Line(row.label, tuple(row.pieces(first.column))) for row in rows]
    return Diagram(name, tuple(_panels(read, name)), tuple(legend), text)


@dataclass(frozen=True, slots=True)
class _Raw:
    label: str
    stream: str
    column: int
    line: str

    def pieces(self, origin: int) -> Iterator[Piece]:
        if self.column < origin:
            raise _wrong("a stream begins before the one of the first line", self.line, self.column)
        at = 0
        while at < len(self.stream):
            reader = _Reader(self, origin, at)
            at = reader.read()
            yield reader.piece()


def _row(line: str, legend: list[str]) -> _Raw | Box:
    if box := _BOX.fullmatch(line.strip()):
        return Box(box["label"])
    if (found := _LEGEND.search(line)) and _LINE.fullmatch(line[: found.start()]):
        legend.append(found["text"])
        line = line[: found.start()]
    if (parts := _LINE.fullmatch(line)) is None:
        raise _wrong("a line is a label, two spaces or more, and a stream", line)
    return _Raw(parts["label"], parts["stream"], parts.start("stream"), line)


def _panels(rows: list[Line | Box], name: str) -> Iterator[tuple[Line | Box, ...]]:
    if any(isinstance(row, Box) for row in rows):
        yield tuple(rows)
        return
    lines = [row for row in rows if isinstance(row, Line)]
    inputs = [line for line in lines if not _is_output(line)]
    outputs = [line for line in lines if _is_output(line)]
    if not inputs or not outputs or lines != [*inputs, *outputs]:
        raise _wrong("first come the inputs, then the lines that are called `out` or by a call", lines[0].label)
    for output in outputs:
        yield (*inputs, Box(name if output.label == "out" else output.label), output)


def _is_output(line: Line) -> bool:
    return line.label == "out" or "(" in line.label


@dataclass(slots=True)
class _Reader:
    """Reads one stream of a line."""

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
        """Read to the end of the stream, and give the place where the next one begins."""
        stream = self.raw.stream
        while self.at < len(stream) and stream[self.at] != " ":
            if self.end in ("|", "#"):
                raise self._error("nothing follows an end")
            self._one(stream[self.at])
        behind = len(stream[self.at :]) - len(stream[self.at :].lstrip(" "))
        if behind == 1:
            raise self._error("a single space within a stream")
        if self.stop == self.start and not self.instants:
            raise self._error("an empty stream")
        return self.at + behind

    def _one(self, char: str) -> None:
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
            self._instant(found["marbles"].split(",") if found["marbles"] else [], begin)
            self.end, self.at, self.stop = found["end"], found.end(), begin
            return
        elif found := _MARBLE.match(stream, self.at):
            if set(found["value"] or "") & set("|#,"):
                raise self._error("marbles of one instant stand in one pair of parentheses, as in (a,b|)")
            self._instant([found[0]], begin)
            self.at = found.end()
        else:
            raise self._error("this is no marble")
        self.stop = begin if char in "|#" else self._column()

    def _instant(self, marbles: list[str], column: int) -> None:
        if not marbles or any(_MARBLE.fullmatch(marble) is None for marble in marbles):
            raise self._error("an instant holds marbles with commas between")
        self.instants.append(Instant(column, tuple(marbles)))

    def _column(self) -> int:
        return self.raw.column + self.at - self.origin

    def _error(self, what: str) -> DiagramError:
        return _wrong(what, self.raw.line, self.raw.column + self.at)
