"""The HTTP clients of one provider: for each event loop its own, and one for every few streams."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

STREAMS_PER_CLIENT = 16
"""httpcore looks at every connection of a pool for every request: many small pools cost far less than one large one."""


@cache
def _ssl_context() -> SSLContext:
    import httpx

    # Reading the certificates takes longer than all else in making a client.
    return httpx.create_ssl_context()


@dataclass(slots=True)
class _Slot:
    client: httpx.AsyncClient
    streams: int = 0


class ClientPool:
    """Lends httpx clients, made when they are first needed."""

    def __init__(self, own: httpx.AsyncClient | None = None) -> None:
        self._own = own
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Slot]] = WeakKeyDictionary()

    @contextmanager
    def lease(self) -> Generator[httpx.AsyncClient]:
        """A client of the running loop, for one stream."""
        if self._own is not None:
            yield self._own
            return
        slot = self._slot()
        slot.streams += 1
        try:
            yield slot.client
        finally:
            slot.streams -= 1

    @property
    def clients(self) -> list[httpx.AsyncClient]:
        """The clients of the running loop that were made here."""
        return [slot.client for slot in self._slots.get(asyncio.get_running_loop(), ())]

    async def aclose(self) -> None:
        """Close the clients of the running loop; one that was given by the user stays open."""
        for slot in self._slots.pop(asyncio.get_running_loop(), ()):
            await slot.client.aclose()

    def _slot(self) -> _Slot:
        import httpx

        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:
            self._forget_closed_loops()
            slots = self._slots[loop] = []
        for slot in slots:
            if slot.streams < STREAMS_PER_CLIENT:
                return slot
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=STREAMS_PER_CLIENT, keepalive_expiry=30)
        slot = _Slot(httpx.AsyncClient(verify=_ssl_context(), limits=limits, timeout=None))
        slots.append(slot)
        return slot

    def _forget_closed_loops(self) -> None:
        # A client holds its loop through its open connections, so that the weak key alone would keep both for ever.
        for loop in [loop for loop in self._slots if loop.is_closed()]:
            del self._slots[loop]
