"""AWS's event streams, `application/vnd.amazon.eventstream`: bytes in, the JSON of the events out."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error, crc32
from struct import Struct
from typing import Any, cast

import orjson
from typing_extensions import override

from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds, Unreadable
from rxloop.providers.transport._frames import Frames

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
