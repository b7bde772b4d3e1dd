"""A server of the HTTP API on a real port, and clients that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import httpx
import uvicorn
from typing_extensions import override

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, tool
from rxloop.errors import EventLogError
from rxloop.server import Api, Principal, api, bearer

TOKENS: dict[str, Principal | str] = {
    "ann-key": "ann",
    "bob-key": "bob",
    "root-key": Principal("root", frozenset({"others", "internal"})),
}


class _Server(uvicorn.Server):
    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self.listens = asyncio.Event()
        self.leaves = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn looks for it every tenth of a second, which hundreds of tests would wait for."""
        await self.on_tick(0)
        await self.leaves.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        # A signal alone does not wake the event loop.
        self._loop.call_soon_threadsafe(self.leaves.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application on a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = _Server(app)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listens.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.leaves.set()
            await task


class Served:
    """An API with its address and its runtime."""

    def __init__(self, url: str, app: Api, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime

    @property
    def gateway(self) -> Any:
        return self.app.gateway


@contextlib.asynccontextmanager
async def serving(
    *agents: Agent[Any, Any], log: EventLog | None = None, runtime: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[Served]:
    """Serve agents, with the users of `TOKENS`, and see that nothing of it is left."""
    options = {"auth": bearer(TOKENS), **options}
    made = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5, **(runtime or {}))
    async with made:
        app = api(made, **options)
        async with listening(app) as url:
            yield Served(url, app, made)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()


def client_of(url: str, token: str = "ann-key") -> httpx.AsyncClient:
    """A plain client of one of `TOKENS`."""
    return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=30)


class Raw:
    """A connection of which a test sends and reads every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, url: str) -> Raw:
        host, port = urlsplit(url).netloc.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def get(self, path: str, token: str = "ann-key", **headers: str) -> bytes:
        """Send a request, and give the head of the answer."""
        given = {"host": "x", "authorization": f"Bearer {token}", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self.writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        return await self.reader.readuntil(b"\r\n\r\n")

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class AwayLog(MemoryEventLog):
    """A log that is out of reach for a while: from when its tool `lose` is called."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.away, self._words = False, words

        @tool
        async def lose() -> str:
            """Lose the log."""
            self.away = True
            return "lost"

        self.lose = lose

    def _look(self) -> None:
        if self.away:
            raise EventLogError(self._words, retryable=False)

    @override
    async def read(self, *args: Any, **options: Any) -> Any:
        self._look()
        return await super().read(*args, **options)

    @override
    async def get_record(self, *args: Any, **options: Any) -> Any:
        self._look()
        return await super().get_record(*args, **options)

    @override
    def follow(self, *args: Any, **options: Any) -> Any:
        self._look()
        return super().follow(*args, **options)
