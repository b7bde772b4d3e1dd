"""The HTTP clients of one provider: for each event loop its own, and over httpx one for every few streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, cast, get_args
from urllib.request import getproxies
from weakref import WeakKeyDictionary, WeakMethod

import anyio

from rxloop.errors import ConfigurationError
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

    from rxloop.providers.transport._aiohttp import AiohttpClient
    from rxloop.providers.transport._exchange import Client
    from rxloop.providers.transport._timeouts import Timeouts

Transport = Literal["httpx", "aiohttp"]
"""What carries the requests."""
TRANSPORT_ENV = "RXLOOP_TRANSPORT"
IDLE_CLIENTS = 4
"""How many clients may rest, or as many as are at work: after a peak the others go soon, and their sockets."""
PEAK_SECONDS = 5.0
"""How long the others rest all the same: within a peak, between two calls of a run, every client rests for a moment."""
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


class _Clients:
    """The clients of one event loop."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self.timer: asyncio.TimerHandle | None = None
        """Looks for clients that have rested for too long."""
        self.closing: set[asyncio.Task[None]] = set()


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
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()

    @property
    def shielded(self) -> bool:
        """Whether what holds a client has to be stopped by a cancel scope of anyio, and not by cancelling its task."""
        return self._own is not None or self._chosen != "aiohttp"

    def lease(self) -> AbstractAsyncContextManager[Client]:
        """Lend a client of the running loop for one stream."""
        loop = asyncio.get_running_loop()
        here = self._by_loop.get(loop)
        if here is None:
            self._forget_closed_loops()
            here = self._by_loop[loop] = _Clients()
        for slot in here.slots:
            # The first with room: after a peak the last ones come to rest.
            if slot.client.streams is None or slot.streams < slot.client.streams:
                return slot
        slot = _Slot(self._new_client())
        here.slots.append(slot)
        return slot

    @property
    def clients(self) -> list[Client]:
        """The clients of the running loop."""
        here = self._by_loop.get(asyncio.get_running_loop())
        return [] if here is None else [slot.client for slot in here.slots]

    async def aclose(self) -> None:
        """Close the clients of the running loop; one that was given by the user stays open."""
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            if here.timer is not None:
                here.timer.cancel()
            await self._close(here.slots)
            if here.closing:
                await asyncio.wait(here.closing)

    async def aclose_unused(self) -> None:
        """Close the clients of the running loop that nobody uses at the moment."""
        here = self._by_loop.get(asyncio.get_running_loop())
        if here is not None:
            unused = [slot for slot in here.slots if not slot.streams]
            here.slots = [slot for slot in here.slots if slot.streams]
            await self._close(unused)

    def tidy(self) -> None:
        """Have the clients of the running loop closed that rest for too long from now on, or are too many to rest."""
        loop = asyncio.get_running_loop()
        here = self._by_loop.get(loop)
        if here is not None and here.timer is None and len(here.slots) > 1:
            # The timer holds neither the pool nor anything of the run that has made the call.
            look = WeakMethod(self._look)
            here.timer = loop.call_later(PEAK_SECONDS, _call, look, here, context=Context())

    def _look(self, here: _Clients) -> None:
        here.timer = None
        now = asyncio.get_running_loop().time()
        resting = [slot for slot in here.slots[1:] if not slot.streams]
        enough = max(IDLE_CLIENTS, len(here.slots) - len(resting))
        over = [
            slot
            for place, slot in enumerate(resting)
            if slot.idle_since <= now - (IDLE_SECONDS if place < enough else PEAK_SECONDS)
        ]
        here.slots = [slot for slot in here.slots if slot not in over]
        if over:
            task = asyncio.get_running_loop().create_task(self._close(over), name="rxloop-close-clients")
            here.closing.add(task)
            task.add_done_callback(here.closing.discard)
        if len(over) < len(resting):
            self.tidy()

    async def _close(self, slots: list[_Slot]) -> None:
        if self._own is not None or not slots:
            return
        # A client that has begun to close must not stay half open.
        with anyio.CancelScope(shield=True):
            for slot in slots:
                await slot.client.aclose()

    def _new_client(self) -> Client:
        from rxloop.providers.transport._httpx import HttpxClient

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
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


def _call(look: WeakMethod[Callable[[_Clients], None]], here: _Clients) -> None:
    if (method := look()) is not None:
        method(here)


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
        from rxloop.providers.transport._aiohttp import AiohttpClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the transport 'aiohttp' needs {error.name}, which is not installed: pip install 'rxloop[fast]'"
        ) from error
    return AiohttpClient
