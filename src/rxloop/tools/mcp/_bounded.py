"""A bound for what a server answers by HTTP: the SDK has one for the events of a stream alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import httpx2

MOST = 32_000_000
"""Bytes of one message of a server."""


async def bounded(response: httpx2.Response) -> None:
    """Bound the body of a response that is to be read as a whole.

    Raises:
        httpx2.DecodingError: It is compressed, though that was not asked for: few bytes may stand for very many.
    """
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.DecodingError("the server compressed its answer, though it was not asked to")
    response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                # What the SDK takes as an answer that cannot be read.
                raise httpx2.StreamError(f"it is longer than {MOST} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()
