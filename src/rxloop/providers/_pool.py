"""The HTTP clients of one provider: for each event loop its own, and one for every few streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, cast, get_args
from weakref import WeakKeyDictionary

import anyio

from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

Transport = Literal["httpx", "aiohttp"]
"""What carries the requests."""
TRANSPORT_ENV = "RXLOOP_TRANSPORT"
STREAMS_PER_CLIENT = 4
"""httpcore looks at every connection of a pool for every request: many small pools cost far less than one large one."""
IDLE_SECONDS = 30.0
"""How long a connection is kept that nobody uses, and a client beyond the first."""


@cache
def _ssl_context() -> SSLContext:
    import httpx

    # Reading the certificates takes longer than all else in making a client.
    return httpx.create_ssl_context()


@dataclass(slots=True)
class _Slot:
    client: httpx.AsyncClient
    streams: int = 0
    idle_since: float = 0.0


class ClientPool:
    """Lends httpx clients, made when they are first needed.

    Args:
        own: The client of the user's: the only one then.
        transport: What the clients that are made here work over; None goes by the environment.
    """

    def __init__(self, own: httpx.AsyncClient | None = None, transport: Transport | None = None) -> None:
        self.own = own
        self._transport: Transport | None = None if transport is None else checked_transport(transport)
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Slot]] = WeakKeyDictionary()

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[httpx.AsyncClient]:
        """A client of the running loop, for one stream."""
        if self.own is not None:
            yield self.own
            return
        loop = asyncio.get_running_loop()
        slot = self._slot(loop)
        slot.streams += 1
        try:
            yield slot.client
        finally:
            slot.streams -= 1
            slot.idle_since = loop.time()
        await self._close_idle(loop)

    @property
    def clients(self) -> list[httpx.AsyncClient]:
        """The clients of the running loop that were made here."""
        return [slot.client for slot in self._slots.get(asyncio.get_running_loop(), ())]

    async def aclose(self) -> None:
        """Close the clients of the running loop; one that was given by the user stays open."""
        for slot in self._slots.pop(asyncio.get_running_loop(), ()):
            await slot.client.aclose()

    def _slot(self, loop: asyncio.AbstractEventLoop) -> _Slot:
        slots = self._slots.get(loop)
        if slots is None:
            self._forget_closed_loops()
            slots = self._slots[loop] = []
        for slot in slots:
            # The first with room: after a peak the last ones come to rest.
            if slot.streams < STREAMS_PER_CLIENT:
                return slot
        slot = _Slot(_made(self._transport or _from_environment()))
        slots.append(slot)
        return slot

    async def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the clients beyond the first that nobody has used for a while."""
        slots = self._slots.get(loop, [])
        if len(slots) < 2:
            return
        latest = loop.time() - IDLE_SECONDS
        idle = [slot for slot in slots[1:] if not slot.streams and slot.idle_since <= latest]
        for slot in idle:
            slots.remove(slot)
        # What has begun to close must not stay half open.
        with anyio.CancelScope(shield=True):
            for slot in idle:
                await slot.client.aclose()

    def _forget_closed_loops(self) -> None:
        # A client holds its loop through its open connections, so that the weak key alone would keep both for ever.
        for loop in [loop for loop in self._slots if loop.is_closed()]:
            del self._slots[loop]


def checked_transport(name: str) -> Transport:
    """The name of a transport.

    Raises:
        ConfigurationError: It is none.
    """
    if name not in get_args(Transport):
        known = " or ".join(map(repr, get_args(Transport)))
        raise ConfigurationError(f"{name!r} is no transport: transport= and {TRANSPORT_ENV} take {known}")
    return cast("Transport", name)


def _from_environment() -> Transport:
    return checked_transport(os.environ.get(TRANSPORT_ENV, "").strip() or "httpx")


def _made(transport: Transport) -> httpx.AsyncClient:
    import httpx

    # No more than that many are lent at a time, so that a limit would only count them once more.
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=STREAMS_PER_CLIENT, keepalive_expiry=IDLE_SECONDS
    )
    if transport == "httpx":
        from rxloop.providers._network import with_cheap_network

        return with_cheap_network(httpx.AsyncClient(verify=_ssl_context(), limits=limits, timeout=None))
    return _aiohttp_client()(verify=_ssl_context(), limits=limits, timeout=None)


def _aiohttp_client() -> type[httpx.AsyncClient]:
    try:
        from rxloop.providers._aiohttp import AiohttpClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the transport 'aiohttp' needs {error.name}, which is not installed: pip install 'rxloop[fast]'"
        ) from error
    return AiohttpClient
