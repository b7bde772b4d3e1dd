"""Accepting connections of `rxloop serve`, with real sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from typing_extensions import override

from rxloop.cli.service import accept
from rxloop.cli.service.accept import BACKLOG, accept_connections
from rxloop.cli.service.process import open_listener

CONNECTIONS = 30


class Recorder(asyncio.Protocol):
    """Protocol that records its connection."""

    def __init__(self, made: list[str], accepted: asyncio.Semaphore) -> None:
        self._made, self._accepted = made, accepted

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append("connection")
        self._accepted.release()
        transport.close()


@asynccontextmanager
async def accepting(make: Callable[[], asyncio.Protocol], clients: int) -> AsyncGenerator[None]:
    """Accept connections of clients that have connected before."""
    with open_listener("127.0.0.1", 0) as listener:
        listener.setblocking(False)
        listener.listen(BACKLOG)
        sockets = [socket.create_connection(listener.getsockname()[:2]) for _ in range(clients)]
        task = asyncio.create_task(accept_connections(listener, make))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            for each in sockets:
                each.close()


async def test_other_work_continues_between_connections() -> None:
    made: list[str] = []
    accepted = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def work() -> None:
        # Longer than an idle iteration of the event loop.
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass
        made.append("work")
        if made.count("connection") < CONNECTIONS:
            loop.call_soon(work)

    async with accepting(lambda: Recorder(made, accepted), CONNECTIONS):
        work()
        for _ in range(CONNECTIONS):
            await accepted.acquire()
    first = made.index("connection")
    # Accepting all connections in one iteration would leave no work between them.
    assert " ".join(made[first:]).count("connection work work work") >= CONNECTIONS - 2


async def test_idle_loop_accepts_before_the_maximum_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "_IDLE_ITERATION", 60)
    monkeypatch.setattr(accept, "_MAX_DELAY", 3600)
    accepted = asyncio.Semaphore(0)
    async with accepting(lambda: Recorder([], accepted), CONNECTIONS):
        for _ in range(CONNECTIONS):
            await accepted.acquire()


async def test_idle_loop_does_not_accept_all_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "_MIN_DELAY", 3600)
    accepted = asyncio.Semaphore(0)
    async with accepting(lambda: Recorder([], accepted), CONNECTIONS):
        await accepted.acquire()
        for _ in range(CONNECTIONS):
            await asyncio.sleep(0)
        assert accepted.locked()


async def test_missing_file_descriptors_are_logged_and_accepting_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept, "_RETRY_DELAY", 0.01)
    loop = asyncio.get_running_loop()
    accept_socket = loop.sock_accept
    errors = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError(errno.ECONNABORTED, "aborted")]

    async def fail_first(listener: socket.socket) -> object:
        if errors:
            raise errors.pop(0)
        return await accept_socket(listener)

    monkeypatch.setattr(loop, "sock_accept", fail_first)
    accepted = asyncio.Semaphore(0)
    with caplog.at_level(logging.ERROR, "rxloop"):
        async with accepting(lambda: Recorder([], accepted), 1):
            await accepted.acquire()
    assert caplog.messages == ["Cannot accept connections, retrying in 0.01 s: Too many open files"]


async def test_failing_protocol_does_not_end_accepting(caplog: pytest.LogCaptureFixture) -> None:
    accepted = asyncio.Semaphore(0)
    failures = [RuntimeError("broken")]

    def make() -> asyncio.Protocol:
        if failures:
            raise failures.pop()
        return Recorder([], accepted)

    async with accepting(make, 2):
        await accepted.acquire()
    assert caplog.messages == ["Connection could not be opened"]
