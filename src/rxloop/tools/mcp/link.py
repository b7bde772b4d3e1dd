"""Calls over a connection, with bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from mcp.client import Client

from rxloop.pipeline.run_context import RunContext
from rxloop.support.redaction import redact_each
from rxloop.tools.mcp.options import Taken

_LONGEST = 2_000


@dataclass(eq=False, slots=True)
class Call:
    """A tool call that is under way."""

    ctx: RunContext[Any]
    samples: int = 0
    """How often the server has asked the model."""
    asking: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """The questions of the server that wait for an answer."""

    def over(self) -> None:
        """Ask no more."""
        for task in self.asking:
            task.cancel()


class Link:
    """A connection, while it is entered.

    Args:
        name: What the server is called.
        taken: What is taken of it.
        client: That of the SDK.
        secrets: What may not be seen of what was sent to it.
        sessions: Whether it is reached by HTTP, where a server may forget a session.
    """

    def __init__(self, name: str, taken: Taken, client: Client, secrets: tuple[str, ...], *, sessions: bool) -> None:
        self.name = name
        self.taken = taken
        self.client = client
        self.secrets = secrets
        self.sessions = sessions
        self.calls: set[Call] = set()
        """The calls that are under way."""
        self.closed = False
        """Whether the server has gone: nothing can be asked any more."""
        self.used = 0.0
        """When it was asked for last."""

    @property
    def modern(self) -> bool:
        """Whether the server speaks 2026-07-28 or later, where questions are answers to calls."""
        return self.client.protocol_version >= "2026"

    def shown(self, text: str, longest: int = _LONGEST) -> str:
        """A text of the server without what is secret, of a bounded length."""
        return redact_each(text, self.secrets)[:longest]


Connect = Callable[[RunContext[Any]], Awaitable[Link]]
"""Gives the connection for the credential of a run; a new one, if the last has ended."""

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
