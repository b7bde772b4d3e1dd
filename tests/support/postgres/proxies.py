"""A way to a Postgres server that fails as networks do: it holds back, delays, cuts off and forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict


@asynccontextmanager
async def proxy(address: str) -> AsyncGenerator[Proxy]:
    """A proxy to the server of an address, for the length of the block."""
    made = Proxy()
    made.address = await made.start(address)
    try:
        yield made
    finally:
        await made.stop()


class Proxy:
    """A way to the server.

    Attributes:
        address: That of the database by this way.
        cut_answers: Each connection is closed when an answer would come over it.
        cut_after: The bytes of the next answer that still pass until its connection is closed; then it is None again.
        delay: Seconds that everything takes, in each direction.
        free: While it is not set, nothing passes and nothing is closed, as if packets were lost. What was sent arrives
            once it is set again, as TCP has it.
    """

    def __init__(self) -> None:
        self.address = ""
        self.cut_answers = False
        self.cut_after: int | None = None
        self.delay = 0.0
        self.free = asyncio.Event()
        self.free.set()
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> str:
        """Begin, and give the address of the way through."""
        parts = conninfo_to_dict(address)
        host, port = str(parts.get("host") or "127.0.0.1"), int(str(parts.get("port") or 5432))

        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, port)
            self._pairs.append((writer, back))
            for source, target, answers in ((reader, back, False), (there, writer, True)):
                self._tasks.add(asyncio.create_task(self._pass(source, target, answers)))

        self._server = await asyncio.start_server(through, "127.0.0.1", 0)
        new = self._server.sockets[0].getsockname()[1]
        return address.replace(f"{parts.get('host')}:{parts.get('port')}", f"127.0.0.1:{new}")

    def black_hole(self) -> None:
        """Let nothing through from now on, and say nothing of it."""
        self.free.clear()

    def heal(self) -> None:
        """Let everything through again, and what was held back first."""
        self.free.set()

    def forget_clients(self) -> None:
        """Close all connections towards the clients; the server takes them for open."""
        self._forget(lambda pair: pair[0])

    def forget_server(self) -> None:
        """Close all connections towards the server; the clients take them for open."""
        self._forget(lambda pair: pair[1])

    def _forget(
        self, side: Callable[[tuple[asyncio.StreamWriter, asyncio.StreamWriter]], asyncio.StreamWriter]
    ) -> None:
        # Their tasks would close the other side too.
        self._stop_passing()
        for pair in self._pairs:
            side(pair).transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if answers and self.cut_answers:
                    break
                await self.free.wait()
                if answers and self.cut_after is not None:
                    data, self.cut_after = data[: self.cut_after], None
                    loop.call_at(due + 0.000_001, target.write, data)
                    break
                # In order, also if the delay has changed.
                due = max(loop.time() + self.delay, due + 0.000_001)
                loop.call_at(due, target.write, data)
            await self.free.wait()
        loop.call_at(due + 0.000_001, target.close)

    def _stop_passing(self) -> None:
        for passing in self._tasks:
            passing.cancel()

    async def stop(self) -> None:
        """Close everything."""
        self._server.close()
        self._stop_passing()
        for pair in self._pairs:
            for writer in pair:
                writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
