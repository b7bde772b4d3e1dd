"""Pool of HTTP clients, separate for each event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast, get_args
from weakref import WeakKeyDictionary, WeakMethod

import anyio

from rxloop.errors import ConfigurationError
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds
from rxloop.support.http_environment import has_proxy, name_variables

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

    from rxloop.providers.bounds import Timeouts
    from rxloop.providers.transport.aiohttp_client import AiohttpClient
    from rxloop.providers.transport.exchange import Client

Transport = Literal["httpx", "aiohttp"]
"""Supported HTTP library."""

TRANSPORT_ENV = "RXLOOP_TRANSPORT"

IDLE_CLIENTS = 4
"""Number of idle clients to keep open. Others are closed after load peaks."""

IDLE_SECONDS = 5.0
"""Seconds before closing idle clients. Under load, clients are idle between calls."""

KEEP_ALIVE_SECONDS = 30.0
"""Seconds before idle connections are no longer reused."""


@cache
def _ssl_context() -> SSLContext:
    import httpx

    # Loading certificates is by far the slowest part.
    return httpx.create_ssl_context()


def _load() -> None:
    for name in ("exchange", "httpx_client"):
        import_module(f"rxloop.providers.transport.{name}")
    # Import the asyncio backend of anyio. The empty context is required in programs that use `anyio.run` themselves.
    Context().run(anyio.run, anyio.sleep, 0)
    with name_variables():
        _ssl_context()


class _Slot:
    """Client with the number of streams that currently use it."""

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
    """Clients for an event loop."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self.timer: asyncio.TimerHandle | None = None
        """Calls `ClientPool._close_idle`."""
        self.closing: set[asyncio.Task[None]] = set()


class ClientPool:
    """Client pool that creates clients on demand.

    Args:
        timeouts: Time limits.
        streamed: Whether requests ask for streams.
        own: Custom client, used exclusively.
        transport: HTTP library; None uses the environment.
        bounds: Response limits.
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
        self._transport: Transport | None = None if transport is None else check_transport(transport)
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()

    @property
    def shielded(self) -> bool:
        """True if a stream must be stopped by an anyio cancel scope, because cancelling its task breaks the connection
        pool.
        """
        return self._own is not None or self._choose_transport != "aiohttp"

    async def prepare(self) -> None:
        """Import libraries and load certificates in a thread. The first call in a process takes up to 100 ms."""
        if self._own is None and not _ssl_context.cache_info().currsize:
            # Imported lazily, because many runs send no requests.
            from rxloop.support.threads import run_in_thread

            await run_in_thread(_load)

    def lease(self) -> AbstractAsyncContextManager[Client]:
        """Lease a client for one stream."""
        loop = asyncio.get_running_loop()
        here = self._by_loop.get(loop)
        if here is None:
            self._forget_closed_loops()
            here = self._by_loop[loop] = _Clients()
        for slot in here.slots:
            # Prefer the first clients, so the last ones become idle.
            if slot.client.streams is None or slot.streams < slot.client.streams:
                return slot
        slot = _Slot(self._new_client())
        here.slots.append(slot)
        return slot

    @property
    def clients(self) -> list[Client]:
        """Clients of the running event loop."""
        here = self._by_loop.get(asyncio.get_running_loop())
        return [] if here is None else [slot.client for slot in here.slots]

    async def aclose(self) -> None:
        """Close the clients of the running event loop. The user's client stays open."""
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            if here.timer is not None:
                here.timer.cancel()
            await self._close(here.slots)
            if here.closing:
                await asyncio.wait(here.closing)

    async def aclose_unused(self) -> None:
        """Close the unused clients of the running event loop."""
        here = self._by_loop.get(asyncio.get_running_loop())
        if here is not None:
            unused = [slot for slot in here.slots if not slot.streams]
            here.slots = [slot for slot in here.slots if slot.streams]
            await self._close(unused)

    def tidy(self) -> None:
        """Schedule closing of surplus idle clients."""
        loop = asyncio.get_running_loop()
        here = self._by_loop.get(loop)
        if here is not None and here.timer is None and len(here.slots) > IDLE_CLIENTS:
            # Use a weak reference and an empty context, so the timer keeps nothing alive.
            close = WeakMethod(self._close_idle)
            here.timer = loop.call_later(IDLE_SECONDS, _call, close, here, context=Context())

    def _close_idle(self, here: _Clients) -> None:
        here.timer = None
        loop = asyncio.get_running_loop()
        extra = [slot for slot in here.slots if not slot.streams][IDLE_CLIENTS:]
        due = [slot for slot in extra if slot.idle_since <= loop.time() - IDLE_SECONDS]
        here.slots = [slot for slot in here.slots if slot not in due]
        if due:
            task = loop.create_task(self._close(due), name="rxloop-close-clients")
            here.closing.add(task)
            task.add_done_callback(here.closing.discard)
        if len(due) < len(extra):
            self.tidy()

    async def _close(self, slots: list[_Slot]) -> None:
        if self._own is not None or not slots:
            return
        # A client must not stay half closed.
        with anyio.CancelScope(shield=True):
            for slot in slots:
                await slot.client.aclose()

    def _new_client(self) -> Client:
        from rxloop.providers.transport.httpx_client import HttpxClient

        if self._own is not None:
            return HttpxClient(self._own, self._timeouts, self._streamed, owned=False)
        make = _aiohttp_client() if check_transport(self._choose_transport) == "aiohttp" else None
        with name_variables():
            if make is None:
                return HttpxClient.own(self._timeouts, self._streamed, _ssl_context(), KEEP_ALIVE_SECONDS)
            return make(self._timeouts, self._streamed, _ssl_context(), KEEP_ALIVE_SECONDS, self._bounds)

    @cached_property
    def _choose_transport(self) -> str:
        name = self._transport or os.environ.get(TRANSPORT_ENV, "").strip() or "httpx"
        # The libraries differ in proxy support: SOCKS, TLS in TLS, proxy authentication. So only httpx is used with a
        # proxy.
        return "httpx" if name == "aiohttp" and has_proxy() else name

    def _forget_closed_loops(self) -> None:
        # The open connections of a client reference its event loop, so the weak key alone would keep both alive.
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


def _call(close: WeakMethod[Callable[[_Clients], None]], here: _Clients) -> None:
    if (method := close()) is not None:
        method(here)


def check_transport(name: object) -> Transport:
    """Validate a transport name.

    Raises:
        ConfigurationError: Unknown transport.
    """
    if name not in get_args(Transport):
        names = " or ".join(map(repr, get_args(Transport)))
        remedy = f"check transport= and {TRANSPORT_ENV}"
        if not isinstance(name, str):
            remedy = "pass an httpx transport as http_client=httpx.AsyncClient(transport=...)"
        raise ConfigurationError(f"transport must be {names}, got {name!r}; {remedy}")
    return cast("Transport", name)


def _aiohttp_client() -> type[AiohttpClient]:
    try:
        from rxloop.providers.transport.aiohttp_client import AiohttpClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"transport 'aiohttp' requires {error.name}; run pip install 'rxloop[fast]'"
        ) from error
    return AiohttpClient
