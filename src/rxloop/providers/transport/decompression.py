"""Decompression of gzip and deflate in bounded pieces, imported at the first model call."""

from __future__ import annotations

import zlib

import httpx

PIECE = 2**16

_GZIP, _ZLIB, _RAW = 31, 15, -15

_MAGIC = 0x1F
"""First byte of gzip data."""


class Inflater:
    """Incremental decompressor for gzip and deflate.

    Args:
        encoding: Value of the `content-encoding` header.

    Raises:
        httpx.DecodingError: The encoding is not supported.
    """

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("gzip", "x-gzip", "deflate"):
            raise httpx.DecodingError(
                f"content-encoding must be gzip or deflate, got {name!r} although 'identity' was requested"
            )
        self._gzip = name != "deflate"
        self._undo = zlib.decompressobj(_GZIP) if self._gzip else None
        self._waiting = b""

    def feed(self, data: bytes) -> None:
        """Add compressed data. Requires that `take` has returned everything."""
        self._waiting += data

    def take(self) -> bytes:
        """Return decompressed data, empty if more input is needed.

        Raises:
            httpx.DecodingError: Invalid data.
        """
        while data := self._waiting:
            if self._undo is None:
                if len(data) < 2:
                    return b""
                # Some servers omit the zlib header that the standard requires.
                self._undo = zlib.decompressobj(
                    _ZLIB if data[0] & 15 == 8 and not int.from_bytes(data[:2]) % 31 else _RAW
                )
            if self._undo.eof:
                # Gzip allows multiple members. Ignore trailing data.
                if not self._gzip or data[0] != _MAGIC:
                    self._waiting = b""
                    return b""
                self._undo = zlib.decompressobj(_GZIP)
            try:
                piece = self._undo.decompress(data, PIECE)
            except zlib.error as error:
                raise httpx.DecodingError(str(error)) from error
            self._waiting = self._undo.unused_data if self._undo.eof else self._undo.unconsumed_tail
            if piece:
                return piece
        return b""


def inflater(encoding: str | None) -> Inflater | None:
    """Create a decompressor, or return None if the data is not compressed.

    Raises:
        httpx.DecodingError: The encoding is not supported.
    """
    return None if not encoding or encoding.strip().lower() == "identity" else Inflater(encoding)
