"""Decoders of AWS event streams and JSON arrays, imported on first use."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error, crc32
from struct import Struct
from typing import Any, cast

import orjson
from typing_extensions import override

from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds, Unreadable


class Frames:
    """Base class of decoders that split bytes into documents. Subclasses implement `_cut`."""

    def __init__(self) -> None:
        self._pending: bytearray = bytearray()
        """Data that belongs to an incomplete document."""
        self._failure: Unreadable | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return completed documents in order.

        Raises:
            OutOfBounds: The document is too large. Earlier documents are returned first.
            Unreadable: The data is invalid. Earlier documents are returned first.
        """
        found: list[bytes] = []
        if self._failure is None:
            try:
                self._cut(data, found)
            except Unreadable as error:
                self._failure = error
        if self._failure is not None and not found:
            raise self._failure
        return found

    def flush(self) -> list[bytes]:
        """Return an incomplete final document, if any. Raises the same errors as `feed`."""
        if self._failure is not None:
            raise self._failure
        return self._rest()

    def _cut(self, data: bytes, found: list[bytes]) -> None:
        """Append the documents that are completed by `data` to `found`."""
        raise NotImplementedError

    def _rest(self) -> list[bytes]:
        return []


_PRELUDE = Struct(">III")
"""Message length, header length, and checksum."""

_CRC = 4

_LEAST = _PRELUDE.size + _CRC

_STRING = 7

_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Value length by header type. Types 6 and 7 have a length prefix."""

_BYTES = re.compile(rb'"bytes"\s*+:\s*+"([^"]*+)"')

_LONGEST_EXCEPTION = 2**16


class AWSDecoder(Frames):
    """Decoder for AWS event streams, which returns the JSON documents in Bedrock's events.

    An exception in the stream is converted to an error in Anthropic's format, with the exception's name as the type.

    Args:
        bounds: Limits of a message.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__()
        self._most = bounds.document
        self._total = 0
        """Current message length, or 0 before the prelude."""
        self._headers = (b"", dict[str, str]())
        """Encoded and parsed headers of the last message. Nearly all messages have the same headers."""

    @override
    def _cut(self, data: bytes, found: list[bytes]) -> None:
        pending = self._pending
        pending += data
        if len(pending) < (self._total or _PRELUDE.size):
            return
        place = 0
        whole = memoryview(bytes(pending))
        while len(whole) - place >= (self._total or _PRELUDE.size):
            if not self._total:
                self._total = self._checked_prelude(whole[place : place + _PRELUDE.size])
                continue
            found += self._document(whole[place : place + self._total])
            place += self._total
            self._total = 0
        del pending[:place]

    def _checked_prelude(self, prelude: memoryview) -> int:
        total, headers, checksum = _PRELUDE.unpack(prelude)
        if crc32(prelude[:8]) != checksum:
            raise Unreadable("an AWS event stream with a wrong prelude checksum")
        if total > self._most:
            raise OutOfBounds("document", self._most)
        if total < _LEAST + headers:
            raise Unreadable("an AWS event stream with an invalid message length")
        return total

    def _document(self, message: memoryview) -> list[bytes]:
        _, headers, _ = _PRELUDE.unpack(message[: _PRELUDE.size])
        if crc32(message[:-_CRC]) != int.from_bytes(message[-_CRC:], "big"):
            raise Unreadable("an AWS event stream with a wrong message checksum")
        names = self._read_headers(bytes(message[_PRELUDE.size : _PRELUDE.size + headers]))
        payload = bytes(message[_PRELUDE.size + headers : -_CRC])
        if names.get(":message-type", "event") != "event":
            return [_as_error(names, payload)]
        # Ignore events without content.
        inner = _BYTES.search(payload)
        if inner is None:
            return []
        try:
            return [b64decode(inner[1].replace(b"\\/", b"/"), validate=True)]
        except Error as error:
            raise Unreadable(f"an AWS event stream with invalid base64: {error}") from None

    def _read_headers(self, data: bytes) -> dict[str, str]:
        if data != self._headers[0]:
            try:
                self._headers = data, _strings(data)
            except (IndexError, KeyError, ValueError):
                raise Unreadable("an AWS event stream with invalid headers") from None
        return self._headers[1]


def _strings(data: bytes) -> dict[str, str]:
    """Return the headers with string values."""
    found: dict[str, str] = {}
    place = 0
    while place < len(data):
        start = place + 1
        place = start + data[place]
        name, kind = data[start:place].decode(), data[place]
        place += 1
        if kind in (6, _STRING):
            place += 2
            size = int.from_bytes(data[place - 2 : place], "big")
        else:
            size = _SIZES[kind]
        if place + size > len(data):
            raise ValueError(name)
        if kind == _STRING:
            found[name] = data[place : place + size].decode()
        place += size
    return found


def _as_error(headers: dict[str, str], payload: bytes) -> bytes:
    """Convert an exception or an unnamed error to Anthropic's error format."""
    message = headers.get(":error-message") or payload[:_LONGEST_EXCEPTION].decode("utf-8", "replace")
    if len(payload) <= _LONGEST_EXCEPTION:
        try:
            fields: Any = orjson.loads(payload)
        except orjson.JSONDecodeError:
            fields = None
        if isinstance(fields, dict):
            told = cast("dict[str, Any]", fields)
            texts = (told.get(name) for name in ("message", "Message", "originalMessage"))
            message = ": ".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text)) or message
    kind = headers.get(":exception-type") or headers.get(":error-code") or "error"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


_NEXT = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}]?)', re.DOTALL)
"""Skips to the next bracket outside of strings, or to an unterminated string. Scanning with a regular expression is
faster.
"""

_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

_BETWEEN = b" \t\r\n,"

_PLAIN = frozenset((b"", b",", b"\n,\r\n", b",\r\n", b",\n"))
"""Usual separators between elements, which need no parsing."""


class ArrayDecoder(Frames):
    """Decoder for JSON arrays, as streamed by Gemini without `alt=sse`.

    Only brackets and strings are scanned. The reader validates elements, including invalid data between objects.

    Args:
        bounds: Element limits.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__()
        self._most = bounds.document
        self._deepest = bounds.depth
        self._open = 0
        """Number of open brackets in the current element."""
        self._in_string = False
        self._escaped = False
        """True if the data so far ends with a backslash in a string."""

    @override
    def _rest(self) -> list[bytes]:
        return self._between(b"")

    @override
    def _cut(self, data: bytes, found: list[bytes]) -> None:
        place = self._end_of_string(data, 0) if self._in_string else 0
        start = 0
        """Start of the part of `data` that continues the pending element."""
        for match in _NEXT.finditer(data, place):
            place = match.end()
            bracket = match[1]
            if not bracket:
                break
            if not self._open:
                # End of data between elements.
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
        """Return the index after the open string, or the length of the data if the string continues."""
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
        """Return the pending data together with its continuation."""
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
