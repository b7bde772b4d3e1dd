"""Messages in the format of AWS event streams."""

from __future__ import annotations

import struct
from base64 import b64encode
from binascii import crc32
from collections.abc import Mapping
from types import MappingProxyType

NONE: Mapping[str, str] = MappingProxyType({})


def message(payload: bytes, headers: Mapping[str, str] = NONE, *, extra: bytes = b"") -> bytes:
    """Return a message with string headers and optional raw headers."""
    encoded = b"".join(
        header(name, 7, len(value).to_bytes(2, "big") + value.encode()) for name, value in headers.items()
    )
    encoded += extra
    unsigned = prelude(len(encoded) + len(payload) + 16, len(encoded)) + encoded + payload
    return unsigned + crc32(unsigned).to_bytes(4, "big")


def prelude(total: int, headers: int) -> bytes:
    """Encode a prelude from the lengths of a message and its headers."""
    lengths = struct.pack(">II", total, headers)
    return lengths + crc32(lengths).to_bytes(4, "big")


def header(name: str, kind: int, value: bytes = b"") -> bytes:
    """Encode a header."""
    return bytes([len(name)]) + name.encode() + bytes([kind]) + value


def chunk(payload: bytes, *, padding: str = "") -> bytes:
    """Return a message with a chunk of a Bedrock response."""
    fields = b'{"bytes":"' + b64encode(payload) + b'"' + (f',"p":"{padding}"' if padding else "").encode() + b"}"
    names = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    return message(fields, names)
