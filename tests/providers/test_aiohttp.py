"""What is particular about aiohttp: it goes as quietly as httpx."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import threading
from collections.abc import Generator

import pytest

from rxloop.providers import OpenAIChat
from servers import REQUEST, Server, chat, collect, say, serving, text


async def test_a_provider_that_nobody_closed_leaves_no_connection_and_says_nothing(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(say("Hello"))
    provider = chat(server, transport="aiohttp")
    assert text(await collect(provider.call(REQUEST))) == "Hello"
    assert server.open == 1
    del provider
    gc.collect()
    async with asyncio.timeout(2):
        await server.all_closed.wait()
    assert caplog.records == []


@contextlib.contextmanager
def elsewhere() -> Generator[Server]:
    """A server in an event loop, and a thread, of its own."""
    ready: queue.Queue[tuple[Server, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with serving() as server:
            over = asyncio.Event()
            ready.put((server, asyncio.get_running_loop(), over))
            await over.wait()
            await server.all_closed.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    server, loop, over = ready.get()
    yield server
    loop.call_soon_threadsafe(over.set)
    thread.join(5)
    assert not thread.is_alive()


# What every library leaves in an event loop that ends before it.
@pytest.mark.filterwarnings("ignore:unclosed (transport|<socket):ResourceWarning")
@pytest.mark.parametrize("debug", [False, True])
def test_a_provider_goes_from_one_event_loop_to_the_next_and_says_nothing(
    caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    caplog.set_level(logging.WARNING)

    async def ask(provider: OpenAIChat) -> str:
        asyncio.get_running_loop().slow_callback_duration = 60
        return text(await collect(provider.call(REQUEST)))

    with elsewhere() as server:
        server.answer(say("Hello"))
        provider = chat(server, transport="aiohttp")
        for _ in range(2):
            assert asyncio.run(ask(provider), debug=debug) == "Hello"
        assert server.connections == 2
        del provider
        gc.collect()
    assert caplog.records == []
