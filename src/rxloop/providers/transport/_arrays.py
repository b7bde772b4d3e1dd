"""A JSON array that is streamed: bytes in, its elements out, each as soon as it is whole."""

from __future__ import annotations

import re

from typing_extensions import override

from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.providers.transport._frames import Frames

_NEXT = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}]?)', re.DOTALL)
"""All up to the next bracket that is not in a string, or up to a string that does not end: brackets are all that
counts, so that Python looks at nothing else."""
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BETWEEN = b" \t\r\n,"
_PLAIN = frozenset((b"", b",", b"\n,\r\n", b",\r\n", b",\n"))
"""What stands between elements nearly always; nothing has to be looked for in it."""


class ArrayDecoder(Frames):
    """Cuts the bytes of a JSON array into its elements, as Gemini streams without `alt=sse`.

    Only brackets and strings are looked at; whether an element is JSON is for its reader to find out. What stands
    between the elements and is no object is handed on as well, so that nothing is passed over in silence.

    Args:
        bounds: How long an element may be, and how deep.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__()
        self._most = bounds.document
        self._deepest = bounds.depth
        self._open = 0
        """The brackets that are open in the element that has begun."""
        self._in_string = False
        self._escaped = False
        """Whether the string was cut behind a backslash."""

    @override
    def _rest(self) -> list[bytes]:
        return self._between(b"")

    @override
    def _cut(self, data: bytes, found: list[bytes]) -> None:
        place = self._end_of_string(data, 0) if self._in_string else 0
        start = 0
        """Where in the data what is pending goes on."""
        for match in _NEXT.finditer(data, place):
            place = match.end()
            bracket = match[1]
            if not bracket:
                break
            if not self._open:
                # A bracket of the array itself, or the first one of an element, ends what stands before it.
                if self._pending or data[start : place - 1] not in _PLAIN:
                    found += self._between(data[start : place - 1])
                self._open = int(bracket == b"{")
                start = place - self._open
            elif bracket in b"[{":
                self._open += 1
                if self._open > self._deepest:
                    self._check_size(place - start)
                    raise OutOfBounds("depth", self._deepest)
            else:
                self._open -= 1
                if not self._open:
                    found.append(self._taken(data[start:place]))
                    start = place
        if place < len(data):
            self._in_string = True
            self._end_of_string(data, place + 1)
        self._pending += data[start:] if self._pending else data[start:].lstrip(_BETWEEN)
        self._check_size()

    def _end_of_string(self, data: bytes, place: int) -> int:
        """Where the string that is open ends, or the end of the data if it does not."""
        if self._escaped and data:
            self._escaped = False
            place += 1
        match = _IN_STRING.match(data, place)
        place = place if match is None else match.end()
        if place == len(data):
            return place
        if data[place] == ord("\\"):
            self._escaped = True
            return len(data)
        self._in_string = False
        return place + 1

    def _taken(self, rest: bytes) -> bytes:
        """What is pending and what completes it."""
        self._check_size(len(rest))
        if not self._pending:
            return rest
        whole = bytes(self._pending) + rest
        self._pending.clear()
        return whole

    def _between(self, rest: bytes) -> list[bytes]:
        other = self._taken(rest if self._pending else rest.lstrip(_BETWEEN)).rstrip(_BETWEEN)
        return [other] if other else []

    def _check_size(self, more: int = 0) -> None:
        if len(self._pending) + more > self._most:
            raise OutOfBounds("document", self._most)
