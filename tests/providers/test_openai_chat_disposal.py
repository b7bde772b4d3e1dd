from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop.errors import ServerError as ServerFailed
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event
from rxloop.providers import Retry
from support.fake_host import FakeHost
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    active_connections,
    chat_model,
    collect,
    delta,
    sse,
    streamed_text,
    text_reply,
)

pytestmark = pytest.mark.usefixtures("transport")

AT_ONCE = Retry(first=0)


async def test_dispose_closes_the_connection_while_the_server_sends(server: Server) -> None:
    # L54
    server.answer(text_reply("a", end="hang", finished=False))
    provider = chat_model(server)
    events: list[Event] = []
    came = asyncio.Event()

    def on_next(event: Event) -> None:
        events.append(event)
        came.set()

    subscription = provider.call(REQUEST).subscribe(on_next)
    await came.wait()
    assert server.open == 1
    subscription.dispose()
    async with asyncio.timeout(1):
        await server.all_closed.wait()
    assert active_connections(provider) == []
    assert len(events) == 1
    await provider.aclose()


@pytest.mark.parametrize("moment", ["at once", "asked", "streaming", "any"])
async def test_two_hundred_disposed_calls_leave_no_connection(server: Server, moment: str) -> None:
    # L54
    server.answer(text_reply(*["word"] * 50, end="end" if moment == "any" else "hang"))
    provider = chat_model(server)
    before = asyncio.all_tasks()
    started = asyncio.Event()
    for _ in range(200):
        subscription = provider.call(REQUEST).subscribe(lambda _: started.set())
        if moment == "at once":
            subscription.dispose()
        elif moment == "any":
            asyncio.get_running_loop().call_later(random.random() / 4, subscription.dispose)
        else:
            event = server.requested if moment == "asked" else started
            asyncio.ensure_future(event.wait()).add_done_callback(lambda _, it=subscription: it.dispose())
    # Completed calls leave their connection open for reuse.
    may_be_kept = moment == "any"
    async with asyncio.timeout(10):
        while (server.open and not may_be_kept) or asyncio.all_tasks() - before - server.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert active_connections(provider) == []
    server.answer(text_reply("still", " here"))
    assert streamed_text(await collect(provider.call(REQUEST))) == "still here"
    await provider.aclose()
    async with asyncio.timeout(1):
        await server.all_closed.wait()


async def test_calls_disposed_at_any_event_leave_no_connection(server: Server) -> None:
    # L54
    server.answer(text_reply("a", "b"), Reply([b"".join(text_reply("a", "b").pieces)]))
    provider = chat_model(server)
    before = asyncio.all_tasks()
    for number in range(60):
        await collect(provider.call(REQUEST).pipe(ops.take(1 + number % 3)))
    async with asyncio.timeout(5):
        while asyncio.all_tasks() - before - server.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert active_connections(provider) == []
    await provider.aclose()


@pytest.mark.parametrize("whose", ["the vendor's", "the subscriber's"])
async def test_error_in_the_stream_closes_the_connection_without_pending_generators(server: Server, whose: str) -> None:
    chunk = delta(content="a") if whose == "the subscriber's" else {"error": {"message": "oops"}}
    server.answer(Reply(sse(delta(content="b"), chunk, done=False), end="hang"))
    provider = chat_model(server)
    tasks: list[str] = []

    def make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        tasks.append(type(work).__name__)
        return asyncio.Task(work, loop=loop, **options)

    def on_next(event: Event) -> None:
        if isinstance(event, ContentDeltaEvent) and event.delta == "a":
            raise ValueError("mine")

    asyncio.get_running_loop().set_task_factory(make_task)
    answer = await collect(provider.call(REQUEST).pipe(ops.do_action(on_next)))
    assert isinstance(answer.error, ValueError if whose == "the subscriber's" else ServerFailed)
    answer.error = None  # A traceback would keep httpx generators alive.
    async with asyncio.timeout(1):
        await server.all_closed.wait()
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    assert set(tasks) == {"coroutine"}  # No generator is left for the event loop to close.
    await provider.aclose()


async def test_closed_gate_stops_reading_from_the_socket(server: Server) -> None:
    host: Any = FakeHost()
    scope = host.info.scope
    server.answer(text_reply("a", "b", "c"))
    provider = chat_model(server)
    events: list[Event] = []
    came = asyncio.Event()

    def on_next(event: Event) -> None:
        events.append(event)
        if not scope.gate.closed:
            scope.gate.close()
        came.set()

    end = asyncio.Event()
    request = REQUEST.replace(ctx=RunContext(run=host))
    provider.call(request).subscribe(on_next, on_completed=end.set)
    await came.wait()
    held = len(events)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(events) == held
    while not end.is_set():
        scope.gate.open()
        came.clear()
        waiting = [asyncio.ensure_future(came.wait()), asyncio.ensure_future(end.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
    assert isinstance(events[-1], ContentCompleteEvent)
    assert await scope.join(1) == []
    await provider.aclose()
