"""Tool call fragments, including detection of complete arguments."""

from __future__ import annotations

import re
from typing import Any

import orjson

_MARK = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)

_VALUE = re.compile(r'\s*(?:[{\["]|null\b)')


class JsonScanner:
    """Incremental scanner for a JSON value that arrives in fragments. Each fragment is scanned once."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_last", "_scanned")

    def __init__(self) -> None:
        self._scanned = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._last = ""
        """Last scanned character that is not white space."""

    def scan(self, pieces: list[str]) -> None:
        """Scan newly added fragments."""
        text = "".join(pieces[self._scanned :])
        self._scanned = len(pieces)
        start = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        for mark in _MARK.finditer(text, start):
            sign = mark[0]
            if self._in_string:
                if sign == '"':
                    self._in_string = False
                elif sign == "\\":
                    # The escaped character is in the next piece.
                    self._escaped = True
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
        if stripped := text.rstrip():
            self._last = stripped[-1]

    @property
    def complete(self) -> bool:
        """True if the scanned text can be a complete object, array or string."""
        return not self._in_string and self._depth == 0 and self._last in ("}", "]", '"')

    @property
    def takes_value(self) -> bool:
        """True if the scanned text allows a value next: at the start, inside a string, or after `:`, `,` or `[`."""
        return self._in_string or self._last in ("", ":", ",", "[")


def starts_value(text: str) -> bool:
    """Return True if the text starts like a JSON object, array, string or null."""
    return _VALUE.match(text) is not None


def is_same_value(text: str, other: str) -> bool:
    """Return True if both strings are complete JSON documents with equal values."""
    if text.strip() == other.strip():
        return True
    try:
        return orjson.loads(other) == orjson.loads(text)
    except orjson.JSONDecodeError:
        return False


class Call:
    """Partially assembled tool call."""

    __slots__ = (
        "extra", "has_vendor_id", "hidden", "id", "index", "key", "name", "pieces", "scanner", "shown_name", "size",
        "started",
    )  # fmt: skip

    def __init__(self, index: int, key: int) -> None:
        self.index = index
        self.key = key
        """Index sent by the server. Several calls may share it."""
        self.id = ""
        self.name = ""
        self.shown_name = ""
        """Name in events: the name of the original tool if the vendor uses another name."""
        self.started = False
        """True if an event with the name was pushed."""
        self.hidden = False
        self.pieces: list[str] = []
        self.extra: dict[str, Any] | None = None
        self.size = 0
        self.has_vendor_id = False
        self.scanner: JsonScanner | None = None

    def scan(self) -> JsonScanner:
        """Scan the arguments received so far, and return the scanner."""
        if self.scanner is None:
            self.scanner = JsonScanner()
        self.scanner.scan(self.pieces)
        return self.scanner

    def clear(self) -> int:
        """Discard the arguments received so far, and return their size in characters."""
        size = sum(map(len, self.pieces))
        self.size -= size
        self.pieces.clear()
        self.scanner = None
        return size


class Piece:
    """Fields of a `tool_calls` entry that determine its call."""

    __slots__ = ("call_id", "fragment", "index", "name")

    def __init__(self, index: int | None, call_id: str, name: str, fragment: str) -> None:
        self.index = index
        self.call_id = call_id
        self.name = name
        self.fragment = fragment


def is_placeholder(call: Call) -> bool:
    """Return True if the arguments may be a placeholder that some servers send before the real arguments."""
    pieces = call.pieces
    return not call.started and 0 < len(pieces) < 4 and "".join(pieces).strip() in ("{}", "null")


def read_index(index: Any) -> int | None:
    """Return an index as an integer, or None. Numeric strings and integral floats are accepted."""
    if index.__class__ is int:
        return index
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        return int(index)
    if isinstance(index, float) and index.is_integer() and abs(index) < 2**31:
        return int(index)
    return None
