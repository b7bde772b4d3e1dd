"""Connection limits and timeouts of `rxloop serve`, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
import uvicorn
from typing_extensions import override
from uvicorn.server import ServerState

from rxloop.cli.service import connections
from rxloop.cli.service.connections import Connection, Connections, count_descriptors, default_max_connections
from rxloop.cli.service.process import open_listener

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
REQUEST = HEAD + b"\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App:
    """ASGI application whose response to `/held` waits for `released`."""

    def __init__(self, body: bytes = b"ok", pieces: int = 1) -> None:
        self.body, self.pieces = body, pieces
        self.started = asyncio.Semaphore(0)
        self.released = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/held":
            self.started.release()
            await self.released.wait()
        headers = [(b"content-length", str(len(self.body) * self.pieces).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for rest in reversed(range(self.pieces)):
            await send({"type": "http.response.body", "body": self.body, "more_body": rest > 0})


class Watched(Connections):
    """Connections whose number can be waited for."""

    def __init__(self, max_connections: int) -> None:
        super().__init__(max_connections, keep_alive=75)
        self.added = asyncio.Semaphore(0)
        self.emptied = asyncio.Event()

    @override
    def add(self, connection: Connection) -> None:
        super().add(connection)
        self.added.release()

    @override
    def remove(self, connection: Connection) -> None:
        super().remove(connection)
        if not len(self):
            self.emptied.set()


@asynccontextmanager
async def serve(app: App, limited: Watched) -> AsyncGenerator[Callable[[], Awaitable[Client]]]:
    """Serve an application, yielding a function that opens a connection."""
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    config.load()
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(await asyncio.open_connection(*listener.getsockname()[:2]))
        # Connecting returns before the server has accepted the connection.
        await limited.added.acquire()
        return clients[-1]

    def make() -> Connection:
        return Connection(limited, config=config, server_state=ServerState(), app_state={})

    with open_listener("127.0.0.1", 0) as listener:
        async with await asyncio.get_running_loop().create_server(make, sock=listener):
            try:
                yield connect
            finally:
                app.released.set()
                for _, writer in clients:
                    writer.transport.abort()
                if len(limited):
                    await limited.emptied.wait()


async def read_status(client: Client) -> bytes:
    """Return the status line of the next response, and skip the rest of the response."""
    reader, _ = client
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    return head.partition(b"\r\n")[0]


async def request(client: Client, path: str = "/") -> None:
    client[1].write(REQUEST.replace(b"/", path.encode(), 1))
    await client[1].drain()


async def wait_closed(client: Client) -> bytes:
    """Return the remaining data of a connection that the server closes."""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            return await client[0].read()
    return b""


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", 0.1)
    monkeypatch.setattr(connections, "STALL_TIMEOUT", 0.1)
    monkeypatch.setattr(connections, "_SWEEP_INTERVAL", 0.01)


async def test_oldest_unused_connection_is_closed_when_there_are_too_many() -> None:
    limited = Watched(4)
    async with serve(App(), limited) as connect:
        silent = [await connect() for _ in range(4)]
        for number in range(3):
            client = await connect()
            assert await wait_closed(silent[number]) == b""
            await request(client)
            assert await read_status(client) == b"HTTP/1.1 200 OK"
        assert len(limited) == 4
        assert not silent[3][0].at_eof()


async def test_connections_with_a_response_are_kept_longer_than_silent_ones() -> None:
    async with serve(App(), Watched(3)) as connect:
        used = await connect()
        await request(used)
        await read_status(used)
        silent = [await connect() for _ in range(2)]
        await connect()
        assert await wait_closed(silent[0]) == b""
        await request(used)
        assert await read_status(used) == b"HTTP/1.1 200 OK"


async def test_idle_connection_is_closed_if_no_connection_is_silent() -> None:
    async with serve(App(), Watched(2)) as connect:
        used = [await connect() for _ in range(2)]
        for each in used:
            await request(each)
            await read_status(each)
        client = await connect()
        assert await wait_closed(used[0]) == b""
        await request(client)
        assert await read_status(client) == b"HTTP/1.1 200 OK"


async def test_number_of_connections_without_a_request_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_UNUSED", 3)
    app, limited = App(), Watched(99)
    async with serve(app, limited) as connect:
        busy: list[Client] = []
        for _ in range(4):
            busy.append(await connect())
            await request(busy[-1], "/held")
            await app.started.acquire()
        silent = [await connect() for _ in range(4)]
        assert await wait_closed(silent[0]) == b""
        assert len(limited) == 7
        app.released.set()
        for each in busy:
            assert await read_status(each) == b"HTTP/1.1 200 OK"
        # More connections are idle than silent in the end.
        for closed in (silent[1], silent[2], busy[0], busy[1]):
            assert await wait_closed(closed) == b""
        await connect()
        assert await wait_closed(busy[2]) == b""
        await request(busy[3])
        assert await read_status(busy[3]) == b"HTTP/1.1 200 OK"
        assert len(limited) == 3


async def test_connection_is_refused_if_all_are_busy() -> None:
    app = App()
    async with serve(app, Watched(2)) as connect:
        busy = [await connect() for _ in range(2)]
        for each in busy:
            await request(each, "/held")
            await app.started.acquire()
        refused = await wait_closed(await connect())
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\n")
        app.released.set()
        for each in busy:
            assert await read_status(each) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(("head", "used"), [(b"", False), (HEAD, False), (HEAD, True)])
@pytest.mark.usefixtures("short_timeouts")
async def test_incomplete_head_is_closed_after_a_timeout(head: bytes, used: bool) -> None:
    async with serve(App(), Watched(9)) as connect:
        client = await connect()
        if used:
            await request(client)
            await read_status(client)
        closed = asyncio.create_task(wait_closed(client))
        client[1].write(head)
        number = 0
        # Each byte would restart a timeout between bytes.
        while not closed.done():
            if head:
                client[1].write(b"x" if number % 40 else b"x:1\r\n")
            number += 1
            await asyncio.wait([closed], timeout=0.01)
        assert await closed == b""


@pytest.mark.usefixtures("short_timeouts")
async def test_body_without_a_reader_is_closed_after_a_timeout() -> None:
    async with serve(App(), Watched(9)) as connect:
        client = await connect()
        client[1].write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert await read_status(client) == b"HTTP/1.1 200 OK"
        closed = asyncio.create_task(wait_closed(client))
        while not closed.done():
            client[1].write(b"x")
            await asyncio.wait([closed], timeout=0.01)


@pytest.mark.usefixtures("short_timeouts")
async def test_request_in_progress_has_no_timeout() -> None:
    app, limited = App(), Watched(9)
    async with serve(app, limited) as connect:
        client, other = await connect(), await connect()
        await request(client, "/held")
        assert await wait_closed(other) == b""
        app.released.set()
        assert await read_status(client) == b"HTTP/1.1 200 OK"


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("pieces", [1, 30])
@pytest.mark.parametrize("close", [False, True])
async def test_client_that_does_not_read_its_response_is_disconnected(close: bool, pieces: int) -> None:
    limited = Watched(9)
    async with serve(App(b"x" * (30_000_000 // pieces), pieces), limited) as connect:
        client = await connect()
        cast("asyncio.ReadTransport", client[1].transport).pause_reading()
        headers = b"host: x\r\nconnection: close\r\n" if close else b"host: x\r\n"
        client[1].write(REQUEST.replace(b"host: x\r\n", headers))
        async with asyncio.timeout(10):
            await limited.emptied.wait()


def test_default_limit_is_below_the_number_of_descriptors() -> None:
    assert [default_max_connections(each) for each in (64, 1024, 1 << 20)] == [48, 768, 10_000]


@pytest.mark.parametrize(("soft", "descriptors"), [(200, 200), (-1, 1 << 16)])
def test_number_of_descriptors_is_the_limit_of_the_process(
    soft: int, descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: {resource.RLIMIT_NOFILE: (soft, 1024)}[kind])
    assert count_descriptors() == descriptors


class Silent:
    """Connection that never sends anything, and the transport of this connection."""

    has_request = False

    def __init__(self, closed: list[float]) -> None:
        self._closed = closed
        self.transport = self

    def is_stalled(self, now: float) -> bool:
        return False

    def abort(self) -> None:
        self._closed.append(asyncio.get_running_loop().time())


@pytest.mark.usefixtures("short_timeouts")
async def test_many_expired_connections_are_closed_in_groups() -> None:
    closed: list[float] = []
    limited = Connections(1_000, keep_alive=75)
    for _ in range(120):
        limited.add(cast("Any", Silent(closed)))
    while len(limited):  # noqa: ASYNC110 (nothing reports the last one)
        await asyncio.sleep(0.01)
    pauses = [number for number in range(1, 120) if closed[number] - closed[number - 1] > 0.005]
    # Closing all of them at once would block the event loop.
    assert max(end - start for start, end in pairwise([0, *pauses, 120])) <= 50
