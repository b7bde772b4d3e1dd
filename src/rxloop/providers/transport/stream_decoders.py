"""Decoders of streams: server-sent events, AWS event streams and JSON arrays."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error, crc32
from struct import Struct
from typing import Any, cast

import orjson
from typing_extensions import override

from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds, Unreadable

_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Decoder for server-sent events.

    Reads can end anywhere, even inside a character. All standard line endings are supported. Comments and fields except
    `data` are ignored.

    Args:
        most: Maximum event size in bytes.
    """

    def __init__(self, max_bytes: int = DEFAULT_BOUNDS.document) -> None:
        self._most = max_bytes
        self._pending: list[bytes] = []
        self._size = 0
        """Size of the pending data in bytes."""
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return completed payloads in order.

        Raises:
            OutOfBounds: The current event is too long.
        """
        if not self._pending and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            # Fast path: almost all vendors send single-line events, which is verified by counting line feeds.
            payloads = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(payloads) and b"\r" not in data:
                self._at_start = self._after_cr = False
                return payloads
        if self._after_cr or b"\r" in data:
            data = self._unix(data)
        pending = self._pending
        # Only new data is scanned. Otherwise each read of a long event would scan the event from its start.
        ends = b"\n\n" in data or (data[:1] == b"\n" and bool(pending) and pending[-1][-1:] == b"\n")
        if data:
            pending.append(data)
        if not ends:
            self._size += len(data)
            if self._size > self._most:
                raise OutOfBounds("document", self._most)
            return []
        if len(pending) > 1:
            data = b"".join(pending)
        if self._at_start:
            self._at_start = False
            data = data.removeprefix(_BOM)
        end = data.rfind(b"\n\n")
        rest = data[end + 2 :]
        self._pending = [rest] if rest else []
        self._size = len(rest)
        if data.startswith(b"data: "):
            payloads = data[6:end].split(b"\n\ndata: ")
            if data.count(b"\n", 0, end) == 2 * len(payloads) - 2:
                return payloads
        blocks = data[:end].split(b"\n\n")
        return [payload for block in blocks if b"data" in block and (payload := _payload(block)) is not None]

    def flush(self) -> list[bytes]:
        """Return the payload of an unterminated last event."""
        block = b"".join(self._pending)
        self._pending = []
        if self._at_start:
            block = block.removeprefix(_BOM)
        payload = _payload(block)
        return [] if payload is None else [payload]

    def _unix(self, data: bytes) -> bytes:
        if self._after_cr and data:
            # The CR already ended the line, and this LF belongs to the same line ending.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if data.endswith(b"\r"):
            self._after_cr = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(block: bytes) -> bytes | None:
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


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
        documents: list[bytes] = []
        if self._failure is None:
            try:
                self._cut(data, documents)
            except Unreadable as error:
                self._failure = error
        if self._failure is not None and not documents:
            raise self._failure
        return documents

    def flush(self) -> list[bytes]:
        """Return an incomplete final document, if any. Raises the same errors as `feed`."""
        if self._failure is not None:
            raise self._failure
        return self._rest()

    def _cut(self, data: bytes, documents: list[bytes]) -> None:
        """Append the documents that are completed by `data` to `documents`."""
        raise NotImplementedError

    def _rest(self) -> list[bytes]:
        return []


_PRELUDE = Struct(">III")
"""Message length, header length, and checksum."""

_CRC = 4

_MIN_SIZE = _PRELUDE.size + _CRC

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
    def _cut(self, data: bytes, documents: list[bytes]) -> None:
        pending = self._pending
        pending += data
        if len(pending) < (self._total or _PRELUDE.size):
            return
        position = 0
        whole = memoryview(bytes(pending))
        while len(whole) - position >= (self._total or _PRELUDE.size):
            if not self._total:
                self._total = self._checked_prelude(whole[position : position + _PRELUDE.size])
                continue
            documents += self._document(whole[position : position + self._total])
            position += self._total
            self._total = 0
        del pending[:position]

    def _checked_prelude(self, prelude: memoryview) -> int:
        total, headers, checksum = _PRELUDE.unpack(prelude)
        if crc32(prelude[:8]) != checksum:
            raise Unreadable("an AWS event stream with a wrong prelude checksum")
        if total > self._most:
            raise OutOfBounds("document", self._most)
        if total < _MIN_SIZE + headers:
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
    headers: dict[str, str] = {}
    position = 0
    while position < len(data):
        start = position + 1
        position = start + data[position]
        name, kind = data[start:position].decode(), data[position]
        position += 1
        if kind in (6, _STRING):
            position += 2
            size = int.from_bytes(data[position - 2 : position], "big")
        else:
            size = _SIZES[kind]
        if position + size > len(data):
            raise ValueError(name)
        if kind == _STRING:
            headers[name] = data[position : position + size].decode()
        position += size
    return headers


def _as_error(headers: dict[str, str], payload: bytes) -> bytes:
    """Convert an exception or an unnamed error to Anthropic's error format."""
    message = headers.get(":error-message") or payload[:_LONGEST_EXCEPTION].decode("utf-8", "replace")
    if len(payload) <= _LONGEST_EXCEPTION:
        try:
            fields: Any = orjson.loads(payload)
        except orjson.JSONDecodeError:
            fields = None
        if isinstance(fields, dict):
            error = cast("dict[str, Any]", fields)
            texts = (error.get(name) for name in ("message", "Message", "originalMessage"))
            message = ": ".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text)) or message
    kind = headers.get(":exception-type") or headers.get(":error-code") or "error"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


_NEXT = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}]?)', re.DOTALL)
"""Skips to the next bracket outside of strings, or to an unterminated string. Scanning with a regular expression is
faster.
"""

_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

_SEPARATOR_BYTES = b" \t\r\n,"

_USUAL_SEPARATORS = frozenset((b"", b",", b"\n,\r\n", b",\r\n", b",\n"))
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
        self._outer = 0
        """Number of brackets of the array itself. Data after the second one is malformed, so it is not scanned."""

    @override
    def _rest(self) -> list[bytes]:
        return self._split_between(b"")

    @override
    def _cut(self, data: bytes, documents: list[bytes]) -> None:
        if self._outer > len("[]"):
            return
        position = self._end_of_string(data, 0) if self._in_string else 0
        start = 0
        """Start of the part of `data` that continues the pending element."""
        for match in _NEXT.finditer(data, position):
            position = match.end()
            bracket = match[1]
            if not bracket:
                break
            if not self._open:
                # End of data between elements.
                if self._pending or data[start : position - 1] not in _USUAL_SEPARATORS:
                    documents += self._split_between(data[start : position - 1])
                self._open = int(bracket == b"{")
                start = position - self._open
                self._outer += not self._open
                if self._outer > len("[]"):
                    # The reader rejects this document. Scanning further brackets would block the event loop.
                    documents.append(bracket)
                    return
            elif bracket in b"[{":
                self._open += 1
                if self._open > self._deepest:
                    self._check_size(position - start)
                    raise OutOfBounds("depth", self._deepest)
            else:
                self._open -= 1
                if not self._open:
                    documents.append(self._join_pending(data[start:position]))
                    start = position
        if position < len(data):
            self._in_string = True
            self._end_of_string(data, position + 1)
        self._pending += data[start:] if self._pending else data[start:].lstrip(_SEPARATOR_BYTES)
        self._check_size()

    def _end_of_string(self, data: bytes, position: int) -> int:
        """Return the index after the open string, or the length of the data if the string continues."""
        if self._escaped and data:
            self._escaped = False
            position += 1
        match = _IN_STRING.match(data, position)
        position = position if match is None else match.end()
        if position == len(data):
            return position
        if data[position] == ord("\\"):
            self._escaped = True
            return len(data)
        self._in_string = False
        return position + 1

    def _join_pending(self, rest: bytes) -> bytes:
        """Return the pending data together with its continuation."""
        self._check_size(len(rest))
        if not self._pending:
            return rest
        whole = bytes(self._pending) + rest
        self._pending.clear()
        return whole

    def _split_between(self, rest: bytes) -> list[bytes]:
        other = self._join_pending(rest if self._pending else rest.lstrip(_SEPARATOR_BYTES)).rstrip(_SEPARATOR_BYTES)
        return [other] if other else []

    def _check_size(self, more: int = 0) -> None:
        if len(self._pending) + more > self._most:
            raise OutOfBounds("document", self._most)
