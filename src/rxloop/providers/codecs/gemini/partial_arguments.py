"""Streaming arguments addressed by JSON paths."""

from __future__ import annotations

import re
from typing import Any

from rxloop.errors import ProviderProtocolError
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.providers.codecs.tool_calls import encode_json

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")

_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")

Step = str | int


class _Container:
    """Open object or array."""

    __slots__ = ("array", "names", "size")

    def __init__(self, array: bool) -> None:
        self.array = array
        self.names: set[Step] = set()
        self.size = 0


class PartialArguments:
    """Converts streamed arguments to JSON.

    Fragments look like `{"jsonPath": "$.to[0].name", "stringValue": "An"}` and arrive in document order. Closed
    containers cannot be reopened.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self._depth = bounds.depth
        self._path: list[Step] = []
        """Path of the innermost open container."""
        self._open: list[_Container] = []
        self._string: list[Step] | None = None
        """Path of the unfinished string."""

    def feed(self, piece: dict[str, Any]) -> str:
        """Return JSON for a fragment, possibly empty.

        Raises:
            ProviderProtocolError: The path is missing or out of order.
            OutOfBounds: The path is too deep.
        """
        value = next((piece[name] for name in _VALUES if name in piece), piece)
        if value is piece:
            return ""
        path = _parse_path(piece.get("jsonPath"))
        if len(path) > self._depth:
            raise OutOfBounds("depth", self._depth)
        written = "" if self._open else "{"
        if not self._open:
            self._open.append(_Container(array=False))
        if path == self._string and isinstance(value, str):
            written += _escape(value)
        else:
            written += self._end_string() + self._open_path(path)
            if isinstance(value, str) and "stringValue" in piece:
                written += '"' + _escape(value)
                self._string = path
            else:
                value = None if "nullValue" in piece else value
                return written + encode_json(value).decode()
        if piece.get("willContinue") is not True:
            written += self._end_string()
        return written

    def close(self) -> str:
        """Return JSON completing the arguments."""
        if not self._open:
            self._open.append(_Container(array=False))
            return "{}"
        return self._end_string() + self._close_until([]) + "}"

    def _end_string(self) -> str:
        ended, self._string = "" if self._string is None else '"', None
        return ended

    def _close_until(self, path: list[Step]) -> str:
        """Close unrelated containers."""
        same = 0
        while same < min(len(path), len(self._path)) and path[same] == self._path[same]:
            same += 1
        written = ""
        while len(self._path) > same:
            self._path.pop()
            written += "]" if self._open.pop().array else "}"
        return written

    def _open_path(self, path: list[Step]) -> str:
        """Open containers for a path, then begin its value."""
        written = self._close_until(path[:-1])
        for index in range(len(self._path), len(path) - 1):
            array = isinstance(path[index + 1], int)
            written += self._begin_member(path[index]) + ("[" if array else "{")
            self._path.append(path[index])
            self._open.append(_Container(array))
        return written + self._begin_member(path[-1])

    def _begin_member(self, step: Step) -> str:
        """Begin an object or array member."""
        container = self._open[-1]
        if isinstance(step, int) is not container.array or (
            step != container.size if container.array else step in container.names
        ):
            raise ProviderProtocolError("argument paths are out of order")
        comma = "," if container.size else ""
        container.size += 1
        if container.array:
            return comma
        container.names.add(step)
        return f"{comma}{encode_json(step).decode()}:"


def _parse_path(path: Any) -> list[Step]:
    """Parse a JSON path."""
    if not isinstance(path, str) or not path.startswith("$"):
        raise ProviderProtocolError(f"argument paths must begin with $, got {str(path)[:100]!r}")
    steps: list[Step] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ProviderProtocolError(f"invalid argument path: {path[:100]!r}")
        name, index, single, double = match.groups()
        steps.append(int(index) if index is not None else name or re.sub(r"\\(.)", r"\1", single or double or ""))
        position = match.end()
    if not steps or isinstance(steps[0], int):
        raise ProviderProtocolError(f"argument paths must begin with a name, got {path[:100]!r}")
    return steps


def _escape(text: str) -> str:
    return encode_json(text).decode()[1:-1]
