"""Postgres proxy that simulates network failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict

from support.tcp_server import serve_connections


@asynccontextmanager
async def proxy(address: str) -> AsyncGenerator[Proxy]:
    """Start a proxy to a Postgres server for the duration of the block."""
    opened_proxy = Proxy()
    opened_proxy.address = await opened_proxy.start(address)
    try:
        yield opened_proxy
    finally:
        await opened_proxy.stop()


class Proxy:
    """TCP proxy to a Postgres server.

    Attributes:
        address: Database URL through the proxy.
        cut_answers: Close each connection when the server answers.
        cut_after: Number of bytes of the next answer to pass before closing the connection. Reset to None after use.
        delay: Delay in each direction, in seconds.
        passes: While not set, no data is passed and no connection is closed, as if packets were lost. Pending data is
            delivered once it is set, as TCP does.
    """

    def __init__(self) -> None:
        self.address = ""
        self.cut_answers = False
        self.cut_after: int | None = None
        self.delay = 0.0
        self.passes = asyncio.Event()
        self.passes.set()
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = AsyncExitStack()

    async def start(self, address: str) -> str:
        """Start the proxy and return its database URL."""
        parts = conninfo_to_dict(address)
        host, port = str(parts.get("host") or "127.0.0.1"), int(str(parts.get("port") or 5432))

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_reader, server_writer = await asyncio.open_connection(host, port)
            self._pairs.append((writer, server_writer))
            for source, target, answers in ((reader, server_writer, False), (server_reader, writer, True)):
                self._tasks.add(asyncio.create_task(self._pass(source, target, answers)))

        new = await self._server.enter_async_context(serve_connections(forward))
        return address.replace(f"{parts.get('host')}:{parts.get('port')}", f"127.0.0.1:{new}")

    def black_hole(self) -> None:
        """Stop passing data without closing connections."""
        self.passes.clear()

    def heal(self) -> None:
        """Resume passing data, starting with pending data."""
        self.passes.set()

    def forget_clients(self) -> None:
        """Abort all client connections. The server keeps its connections open."""
        self._forget(lambda pair: pair[0])

    def forget_server(self) -> None:
        """Abort all server connections. The clients keep their connections open."""
        self._forget(lambda pair: pair[1])

    def _forget(
        self, side: Callable[[tuple[asyncio.StreamWriter, asyncio.StreamWriter]], asyncio.StreamWriter]
    ) -> None:
        # Otherwise, the tasks would close the other side.
        self._stop_passing()
        for pair in self._pairs:
            side(pair).transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if answers and self.cut_answers:
                    break
                await self.passes.wait()
                if answers and self.cut_after is not None:
                    data, self.cut_after = data[: self.cut_after], None
                    loop.call_at(due + 0.000_001, target.write, data)
                    break
                # Keep the order even if the delay changes.
                due = max(loop.time() + self.delay, due + 0.000_001)
                loop.call_at(due, target.write, data)
            await self.passes.wait()
        loop.call_at(due + 0.000_001, target.close)

    def _stop_passing(self) -> None:
        for passing in self._tasks:
            passing.cancel()

    async def stop(self) -> None:
        """Close all connections."""
        self._stop_passing()
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        # This includes clients for which no connection to the server was opened.
        await self._server.aclose()
        if self._tasks:
            await asyncio.wait(self._tasks)
