from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rxloop.providers.transport.httpx_client import before_waiting


class Chunks:
    """Iterator that yields some chunks at once, and others on request."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await self.gate.wait()
            yield 3
        finally:
            # Asynchronous cleanup, as in httpx.
            await asyncio.sleep(0)
            self.closed = True


async def test_callback_is_called_only_before_a_wait() -> None:
    chunks = Chunks()
    source = aiter(chunks)
    calls: list[str] = []
    assert await before_waiting(anext(source), lambda: calls.append("a")) == 1
    assert await before_waiting(anext(source), lambda: calls.append("b")) == 2
    assert calls == []
    asyncio.get_running_loop().call_soon(chunks.gate.set)
    assert await before_waiting(anext(source), lambda: calls.append("c")) == 3
    assert calls == ["c"]


async def test_cancelled_wait_closes_the_awaitable() -> None:
    chunks = Chunks()
    source = aiter(chunks)
    waits = asyncio.Event()

    async def read() -> None:
        while True:
            await before_waiting(anext(source), waits.set)

    task = asyncio.ensure_future(read())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert chunks.closed


async def test_end_and_errors_of_the_awaitable_are_passed_on() -> None:
    chunks = Chunks()
    chunks.gate.set()
    source = aiter(chunks)
    assert [await before_waiting(anext(source), lambda: None) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(StopAsyncIteration):
        await before_waiting(anext(source), lambda: None)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await before_waiting(fail(), lambda: None)


async def test_dropped_await_closes_the_awaitable() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append("closed")

    async def await_work() -> None:
        await before_waiting(work(), lambda: None)

    steps = await_work()
    steps.send(None)
    steps.close()
    assert closed == ["closed"]
