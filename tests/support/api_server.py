"""HTTP API server on a real port, and misbehaving clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from types import FrameType
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import uvicorn
from typing_extensions import override

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, tool
from rxloop.cli.service.process import get_url, open_listener
from rxloop.errors import EventLogError
from rxloop.server import Api, Principal, api, bearer
from support.tcp_server import stop_accepting

TOKENS: dict[str, Principal | str] = {
    "ann-key": "ann",
    "bob-key": "bob",
    "root-key": Principal("root", frozenset({"others", "internal"})),
}

TRUSTED = bearer({f"{name}-key": Principal(name, frozenset({"internal"})) for name in ("ann", "bob")})
"""Authentication of the same users. They may answer hidden questions."""


class _Server(uvicorn.Server):
    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self.accepts = asyncio.Event()
        self.stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def main_loop(self) -> None:
        """Wait for shutdown without polling.

        Uvicorn polls every 0.1 seconds, which would slow down hundreds of tests.
        """
        await self.on_tick(0)
        await self.stopping.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        # A signal alone does not wake the event loop.
        self._loop.call_soon_threadsafe(self.stopping.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await stop_accepting(*self.servers)
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepts.set()


async def abort_connections(server: uvicorn.Server) -> None:
    """Abort the connections of a server that has ended, so that none remains open after the event loop."""
    # Chromium opens connections in advance. One that was accepted during the shutdown is not closed by it. A connection
    # whose client does not read stays open until it is aborted.
    for _ in range(5):
        await asyncio.sleep(0)
        for connection in list(server.server_state.connections):
            cast("Any", connection).transport.abort()


@contextlib.asynccontextmanager
async def serve_app(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application on a free port."""
    with open_listener("127.0.0.1", 0) as listener:
        server = _Server(app)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.accepts.wait()
        try:
            yield get_url(listener)
        finally:
            server.stopping.set()
            await task
            await abort_connections(server)


class RunningApi:
    """Running API with its URL and runtime."""

    def __init__(self, url: str, app: Api, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime

    @property
    def gateway(self) -> Any:
        return self.app.gateway


@contextlib.asynccontextmanager
async def serve_api(
    *agents: Agent[Any, Any], log: EventLog | None = None, runtime: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[RunningApi]:
    """Serve agents to the users in `TOKENS`. Drain the API at the end."""
    options = {"auth": bearer(TOKENS), **options}
    host = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5, **(runtime or {}))
    async with host:
        app = api(host, **options)
        async with serve_app(app) as url:
            yield RunningApi(url, app, host)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()


def make_client(url: str, token: str = "ann-key") -> httpx.AsyncClient:
    """Return an HTTP client that authenticates with one of the `TOKENS`."""
    return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=30)


class RawConnection:
    """TCP connection for sending and reading raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, url: str) -> RawConnection:
        host, port = urlsplit(url).netloc.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def get(self, path: str, token: str = "ann-key", **headers: str) -> bytes:
        """Send a GET request and return the response head."""
        header_fields = {"host": "x", "authorization": f"Bearer {token}", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in header_fields.items())
        self.writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        return await self.reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class UnavailableLog(MemoryEventLog):
    """Event log that becomes unavailable once its tool `lose` is called."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.unavailable, self._words = False, words

        @tool
        async def lose() -> str:
            """Lose the log."""
            self.unavailable = True
            return "lost"

        self.lose = lose

    def _check_available(self) -> None:
        if self.unavailable:
            raise EventLogError(self._words, retryable=False)

    @override
    async def read(self, *args: Any, **options: Any) -> Any:
        self._check_available()
        return await super().read(*args, **options)

    @override
    async def get_record(self, *args: Any, **options: Any) -> Any:
        self._check_available()
        return await super().get_record(*args, **options)

    @override
    def follow(self, *args: Any, **options: Any) -> Any:
        self._check_available()
        return super().follow(*args, **options)
