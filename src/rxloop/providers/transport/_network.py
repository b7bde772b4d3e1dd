"""A cheaper network for httpx. Nothing imports this file before a model is called."""

from __future__ import annotations

import select
from collections.abc import Iterable
from contextlib import suppress
from ssl import SSLContext
from typing import Any

import httpcore
import httpx
from typing_extensions import override

from rxloop.providers.bounds import DEFAULT_BOUNDS
from rxloop.providers.transport._head import AT_ONCE, Head, is_whole

MOST_TOGETHER = 2**16
"""Bodies of up to so many bytes are copied behind their head; a larger one costs more than its own write."""


def with_cheap_network(client: httpx.AsyncClient, head: int = DEFAULT_BOUNDS.head) -> httpx.AsyncClient:
    """Let a client write the head and the body of a request together, and see at little cost what has been closed.

    Heads of answers of more than `head` bytes it refuses.

    httpcore writes them one after the other, and a write is a tenth of what a small request costs. For each request it
    asks all idle connections of its pool whether the server has closed them, which takes anyio twenty times as long as
    the question itself. Its backends are there to be replaced, but httpx passes none on: where a version of it keeps
    its pool elsewhere, nothing changes.
    """
    pool: Any = getattr(getattr(client, "_transport", None), "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if isinstance(backend, httpcore.AsyncNetworkBackend):
        pool._network_backend = _Backend(backend, head)
    return client


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, inner: httpcore.AsyncNetworkBackend, head: int) -> None:
        self._inner = inner
        self._longest_head = head

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._longest_head)

    @override
    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_unix_socket(path, timeout, socket_options)
        return _Stream(stream, self._longest_head)

    @override
    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """Holds what ends like the head of a request until the next piece comes, or an answer is waited for."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, longest_head: int = DEFAULT_BOUNDS.head) -> None:
        self._inner = inner
        self._held = b""
        self._longest_head = longest_head
        self._head: Head | None = None
        """That of the answer which is awaited, where it did not come in one piece."""
        self._awaited = False
        """Whether it is awaited."""
        self._socket: Any = inner.get_extra_info("socket")
        self._poll = None
        # It may be closed by now: some servers reset a connection as soon as it is made.
        if self._socket is not None and self._socket.fileno() >= 0 and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(self._socket.fileno(), select.POLLIN)

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._held:
            # Where nothing can be written an answer may be there already: httpcore, too, goes on to read.
            with suppress(httpcore.WriteError):
                await self.write(b"", timeout)
        if not self._awaited:
            return await self._inner.read(max_bytes, timeout)
        data = await self._inner.read(min(max_bytes, AT_ONCE), timeout)
        if self._head is None and is_whole(data, self._longest_head):
            self._go_on()
        else:
            self._read_head(data)
        return data

    def _read_head(self, data: bytes) -> None:
        if self._head is None:
            self._head = Head(self._longest_head)
        self._head.feed(data)
        if self._head.over:
            self._go_on()

    def _go_on(self) -> None:
        """Leave the rest of the answer to the socket: from here to the next request there is nothing to see to."""
        self._head, self._awaited = None, False
        self.read = self._inner.read  # pyright: ignore[reportAttributeAccessIssue]

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        held, self._held = self._held, b""
        if not held and buffer.endswith(b"\r\n\r\n"):
            self._held = buffer
            self._head, self._awaited = None, True
            self.__dict__.pop("read", None)
        elif held and len(buffer) > MOST_TOGETHER:
            await self._inner.write(held, timeout)
            await self._inner.write(buffer, timeout)
        else:
            await self._inner.write(held + buffer if held else buffer, timeout)

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()

    @override
    async def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(stream, self._longest_head)

    @override
    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._poll is not None:
            # Its number may be another socket's once it is closed.
            return self._socket.fileno() < 0 or bool(self._poll.poll(0))
        return self._inner.get_extra_info(info)
