"""Bodies of responses in pieces of bounded size, with decompression of gzip and deflate."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import anyio
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


def iterate_pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the decompressed body of a response in pieces. Pass the iterator to `end_pieces` unless it is exhausted.

    Raises:
        httpx.DecodingError: The encoding is not supported.
    """
    if response.is_stream_consumed:
        # An event hook of the user's client has already read the body.
        return response.aiter_bytes()
    # `aiter_raw` would only add a generator on top of this stream.
    source = aiter(cast("httpx.AsyncByteStream", response.stream))
    undo = inflater(response.headers.get("content-encoding"))
    return source if undo is None else _inflate(source, undo)


async def _inflate(source: AsyncIterator[bytes], undo: Inflater) -> AsyncIterator[bytes]:
    try:
        async for data in source:
            undo.feed(data)
            while piece := undo.take():
                yield piece
                # Small inputs can be very large when decompressed.
                await asyncio.sleep(0)
    finally:
        await end_pieces(source)


async def end_pieces(source: AsyncIterator[bytes]) -> None:
    """Close the generators of httpx in this task. Otherwise the event loop closes them at an arbitrary time."""
    with anyio.move_on_after(0), suppress(httpx.HTTPError):
        async for _ in source:
            pass
