"""Decompression of gzip and deflate in bounded pieces; imported at the first model call."""

from __future__ import annotations

import zlib

import httpx

PIECE = 2**16

_GZIP, _ZLIB, _RAW = 31, 15, -15

_MAGIC = 0x1F
"""What gzip begins with."""


class Inflater:
    """Undoes gzip and deflate.

    Args:
        encoding: The header `content-encoding`.

    Raises:
        httpx.DecodingError: It is something else.
    """

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("gzip", "x-gzip", "deflate"):
            raise httpx.DecodingError(
                f"it is encoded as {name!r}, although 'identity' was asked for: only gzip and deflate can be read"
            )
        self._gzip = name != "deflate"
        self._undo = zlib.decompressobj(_GZIP) if self._gzip else None
        self._waiting = b""

    def feed(self, data: bytes) -> None:
        """Take more of what came; only when `take` has given all of what came before."""
        self._waiting += data

    def take(self) -> bytes:
        """The next piece of the answer; nothing if more has to come first.

        Raises:
            httpx.DecodingError: It is not what it says.
        """
        while data := self._waiting:
            if self._undo is None:
                if len(data) < 2:
                    return b""
                # Some servers leave out what the standard puts around it.
                self._undo = zlib.decompressobj(
                    _ZLIB if data[0] & 15 == 8 and not int.from_bytes(data[:2]) % 31 else _RAW
                )
            if self._undo.eof:
                # Another member: gzip may be put together of several. Anything else after the end is ignored.
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
    """What undoes such an encoding; None where there is nothing to undo.

    Raises:
        httpx.DecodingError: It cannot be undone.
    """
    return None if not encoding or encoding.strip().lower() == "identity" else Inflater(encoding)
