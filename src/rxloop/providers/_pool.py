"""The HTTP clients of one provider: for each event loop its own, and over httpx one for every few streams."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, cast, get_args
from urllib.request import getproxies
from weakref import WeakKeyDictionary

import anyio

from rxloop.errors import ConfigurationError
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

    from rxloop.providers._aiohttp import AiohttpClient
    from rxloop.providers._exchange import Client
    from rxloop.providers._timeouts import Timeouts

Transport = Literal["httpx", "aiohttp"]
"""What carries the requests."""
TRANSPORT_ENV = "RXLOOP_TRANSPORT"
IDLE_CLIENTS = 4
"""How many clients may rest, or as many as are at work: after a peak the others go at once, and their sockets."""
IDLE_SECONDS = 30.0
"""How long a connection is kept that nobody uses, and a client beyond the first."""


@cache
def _ssl_context() -> SSLContext:
    import httpx

    # Reading the certificates takes longer than all else in making a client.
    return httpx.create_ssl_context()


class _Slot:
    """A client, and how many streams it is lent to."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.streams = 0
        self.idle_since = 0.0

    async def __aenter__(self) -> Client:
        self.streams += 1
        return self.client

    async def __aexit__(self, *_: object) -> None:
        self.streams -= 1
        self.idle_since = asyncio.get_running_loop().time()


class ClientPool:
    """Lends clients, made when they are first needed.

    Args:
        timeouts: How long a request may take.
        streamed: Whether streams are asked for.
        own: The user's client, which is then the only one.
        transport: What the clients made here work over; None takes it from the environment.
        bounds: What an answer may be.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        streamed: bool = True,
        own: httpx.AsyncClient | None = None,
        transport: Transport | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._timeouts = timeouts
        self._streamed = streamed
        self._own = own
        self._bounds = bounds
        self._transport: Transport | None = None if transport is None else checked_transport(transport)
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Slot]] = WeakKeyDictionary()

    @property
    def shielded(self) -> bool:
        """Whether what holds a client has to be stopped by a cancel scope of anyio, and not by cancelling its task."""
        return self._own is not None or self._chosen != "aiohttp"

    def lease(self) -> AbstractAsyncContextManager[Client]:
        """Lend a client of the running loop for one stream."""
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:
            self._forget_closed_loops()
            slots = self._slots[loop] = []
        for slot in slots:
            # The first with room: after a peak the last ones come to rest.
            if slot.client.streams is None or slot.streams < slot.client.streams:
                return slot
        slot = _Slot(self._new_client())
        slots.append(slot)
        return slot

    @property
    def clients(self) -> list[Client]:
        """The clients of the running loop."""
        return [slot.client for slot in self._slots.get(asyncio.get_running_loop(), ())]

    async def aclose(self) -> None:
        """Close the clients of the running loop; one that was given by the user stays open."""
        for slot in self._slots.pop(asyncio.get_running_loop(), ()):
            if self._own is None:
                await slot.client.aclose()

    async def close_idle(self) -> None:
        """Close the clients beyond the first that nobody has used for a while, or that are too many to rest."""
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop, [])
        if len(slots) < 2:
            return
        latest = loop.time() - IDLE_SECONDS
        resting = [slot for slot in slots[1:] if not slot.streams]
        enough = max(IDLE_CLIENTS, len(slots) - len(resting))
        await self._close(slots, [*resting[enough:], *(slot for slot in resting[:enough] if slot.idle_since <= latest)])

    async def aclose_unused(self) -> None:
        """Close the clients of the running loop that nobody uses at the moment."""
        slots = self._slots.get(asyncio.get_running_loop(), [])
        await self._close(slots, [slot for slot in slots if not slot.streams])

    async def _close(self, slots: list[_Slot], surplus: list[_Slot]) -> None:
        for slot in surplus:
            slots.remove(slot)
        if self._own is not None or not surplus:
            return
        # A client that has begun to close must not stay half open.
        with anyio.CancelScope(shield=True):
            for slot in surplus:
                await slot.client.aclose()

    def _new_client(self) -> Client:
        from rxloop.providers._httpx import HttpxClient

        if self._own is not None:
            return HttpxClient(self._own, self._timeouts, self._streamed, lasting=False)
        if checked_transport(self._chosen) == "aiohttp":
            return _aiohttp_client()(self._timeouts, self._streamed, _ssl_context(), IDLE_SECONDS, self._bounds)
        return HttpxClient.own(self._timeouts, self._streamed, _ssl_context(), IDLE_SECONDS, self._bounds)

    @cached_property
    def _chosen(self) -> str:
        name = self._transport or os.environ.get(TRANSPORT_ENV, "").strip() or "httpx"
        # The two differ most with a proxy: SOCKS, TLS inside TLS, how the client authenticates itself.
        return "httpx" if name == "aiohttp" and getproxies().keys() - {"no"} else name

    def _forget_closed_loops(self) -> None:
        # A client holds its loop through its open connections, so that the weak key alone would keep both for ever.
        for loop in [loop for loop in self._slots if loop.is_closed()]:
            del self._slots[loop]


def checked_transport(name: str) -> Transport:
    """Check the name of a transport.

    Raises:
        ConfigurationError: There is no transport of that name.
    """
    if name not in get_args(Transport):
        known = " or ".join(map(repr, get_args(Transport)))
        raise ConfigurationError(f"{name!r} is not a transport: transport= and {TRANSPORT_ENV} take {known}")
    return cast("Transport", name)


def _aiohttp_client() -> type[AiohttpClient]:
    try:
        from rxloop.providers._aiohttp import AiohttpClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the transport 'aiohttp' needs {error.name}, which is not installed: pip install 'rxloop[fast]'"
        ) from error
    return AiohttpClient
