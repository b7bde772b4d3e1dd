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
    """Cuts bytes into documents; a subclass says how, in `_cut`."""

    def __init__(self) -> None:
        self._pending: bytearray = bytearray()
        """What came before and belongs to no whole document yet."""
        self._failure: Unreadable | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The documents that these bytes complete, in order.

        Raises:
            OutOfBounds: The document that has begun is too large; raised after all before it.
            Unreadable: These are no frames, or damaged ones; raised likewise.
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
        """What is left at the end of the bytes: a document that was not completed, or none; raises as `feed` does."""
        if self._failure is not None:
            raise self._failure
        return self._rest()

    def _cut(self, data: bytes, found: list[bytes]) -> None:
        """Put the documents that the data completes into `found`."""
        raise NotImplementedError

    def _rest(self) -> list[bytes]:
        return []


_PRELUDE = Struct(">III")
"""The bytes of the message, those of its headers, and a checksum of these two numbers."""

_CRC = 4

_LEAST = _PRELUDE.size + _CRC

_STRING = 7

_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type; those of the types 6 and 7 stand in front of it."""

_BYTES = re.compile(rb'"bytes"\s*+:\s*+"([^"]*+)"')

_LONGEST_EXCEPTION = 2**16


class AWSDecoder(Frames):
    """Cuts the bytes of an AWS event stream into the JSON documents that Bedrock puts into its events.

    An exception in the stream becomes an error in Anthropic's form, with the name that AWS gives to it as its type.

    Args:
        bounds: How long a message may be.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__()
        self._most = bounds.document
        self._total = 0
        """Bytes of the message that has begun; 0 until its prelude is there."""
        self._headers = (b"", dict[str, str]())
        """The last headers as bytes, and what they say: nearly all messages have the same."""

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
            raise Unreadable("an AWS event stream with a wrong checksum in the prelude of a message")
        if total > self._most:
            raise OutOfBounds("document", self._most)
        if total < _LEAST + headers:
            raise Unreadable("an AWS event stream with a message that is shorter than its parts")
        return total

    def _document(self, message: memoryview) -> list[bytes]:
        _, headers, _ = _PRELUDE.unpack(message[: _PRELUDE.size])
        if crc32(message[:-_CRC]) != int.from_bytes(message[-_CRC:], "big"):
            raise Unreadable("an AWS event stream with a wrong checksum of a message")
        names = self._read_headers(bytes(message[_PRELUDE.size : _PRELUDE.size + headers]))
        payload = bytes(message[_PRELUDE.size + headers : -_CRC])
        if names.get(":message-type", "event") != "event":
            return [_as_error(names, payload)]
        # Other events than those with a piece of the answer say nothing about it.
        inner = _BYTES.search(payload)
        if inner is None:
            return []
        try:
            return [b64decode(inner[1].replace(b"\\/", b"/"), validate=True)]
        except Error as error:
            raise Unreadable(f"an AWS event stream with an event that is not base64: {error}") from None

    def _read_headers(self, data: bytes) -> dict[str, str]:
        if data != self._headers[0]:
            try:
                self._headers = data, _strings(data)
            except (IndexError, KeyError, ValueError):
                raise Unreadable("an AWS event stream with headers that cannot be read") from None
        return self._headers[1]


def _strings(data: bytes) -> dict[str, str]:
    """The headers whose values are strings."""
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
    """An exception, or an error that the service had no name for, in Anthropic's form."""
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
