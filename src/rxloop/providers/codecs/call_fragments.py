"""Fragments of one tool call, and the detection of the end of its arguments."""

from __future__ import annotations

import re
from typing import Any

import orjson

_MARK = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)

_VALUE = re.compile(r'\s*(?:[{\["]|null\b)')


class JsonScanner:
    """Position in a JSON value that arrives in pieces. Each piece is scanned at most once."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_last", "_scanned")

    def __init__(self) -> None:
        self._scanned = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._last = ""
        """Last scanned character other than white space."""

    def scan(self, pieces: list[str]) -> None:
        """Scan the new pieces."""
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
        """True if the scanned text can be one complete object, array or string."""
        return not self._in_string and self._depth == 0 and self._last in ("}", "]", '"')

    @property
    def takes_value(self) -> bool:
        """True if another value can follow in the scanned text: at the start, in a string, or where an item starts."""
        return self._in_string or self._last in ("", ":", ",", "[")


def starts_value(text: str) -> bool:
    """Return True if a text starts like a JSON object, an array, a string or null."""
    return _VALUE.match(text) is not None


def is_same_value(text: str, other: str) -> bool:
    """Return True if both texts are complete JSON and mean the same."""
    if text.strip() == other.strip():
        return True
    try:
        return orjson.loads(other) == orjson.loads(text)
    except orjson.JSONDecodeError:
        return False


class Call:
    """A tool call that is being put together."""

    __slots__ = (
        "begun", "extra", "has_vendor_id", "hidden", "id", "index", "key", "name", "pieces", "scanner", "shown_name",
        "size",
    )  # fmt: skip

    def __init__(self, index: int, key: int) -> None:
        self.index = index
        self.key = key
        """The index that the server sent. Several calls may have the same one."""
        self.id = ""
        self.name = ""
        self.shown_name = ""
        """The name in events: that of our tool, where the vendor knows it by another one."""
        self.begun = False
        """True if an event with its name was pushed."""
        self.hidden = False
        self.pieces: list[str] = []
        self.extra: dict[str, Any] | None = None
        self.size = 0
        self.has_vendor_id = False
        self.scanner: JsonScanner | None = None

    def scan(self) -> JsonScanner:
        """Scan the arguments up to here; only pieces that were not scanned before cost time."""
        if self.scanner is None:
            self.scanner = JsonScanner()
        self.scanner.scan(self.pieces)
        return self.scanner

    def clear(self) -> int:
        """Remove the arguments up to here, and return their size."""
        size = sum(map(len, self.pieces))
        self.size -= size
        self.pieces.clear()
        self.scanner = None
        return size


class Piece:
    """One entry of `tool_calls`, with the fields that decide to which call it belongs."""

    __slots__ = ("call_id", "fragment", "index", "name")

    def __init__(self, index: int | None, call_id: str, name: str, fragment: str) -> None:
        self.index = index
        self.call_id = call_id
        self.name = name
        self.fragment = fragment


def is_placeholder(call: Call) -> bool:
    """Return True if the arguments up to here may be a placeholder, which some servers send before the real ones."""
    pieces = call.pieces
    return not call.begun and 0 < len(pieces) < 4 and "".join(pieces).strip() in ("{}", "null")


def read_index(index: Any) -> int | None:
    """Return an index as an integer, also one that was sent as a string or a float; None if it is no number."""
    if index.__class__ is int:
        return index
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        return int(index)
    if isinstance(index, float) and index.is_integer() and abs(index) < 2**31:
        return int(index)
    return None
