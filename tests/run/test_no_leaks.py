"""Leak tests with a thousand runs per outcome."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from reactivex import operators as ops
from starlette.responses import StreamingResponse

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.errors import ProviderError, RunCancelled, RunError
from rxloop.protocol.events import Event
from rxloop.providers import openai_chat
from rxloop.run.handle import Run
from rxloop.server import api
from rxloop.stream.readers import HEARTBEAT
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import abort_connections
from support.http_server import Reply, Server, list_connections, start_server, text_reply
from support.run_checks import (
    assert_ended,
    assert_numbered,
    final_events,
    kinds,
    other_tasks,
    run_ready_tasks,
    wait_until,
)
from support.tcp_server import serve_connections, stop_accepting

RUNS = 1_000
BATCH = 100


@tool
async def look(ctx: RunContext) -> str:
    """Look."""
    ctx.progress("looking")
    await asyncio.sleep(0)
    return "seen"


@tool(name="waits")
async def look_as_waits() -> str:
    """Look."""
    return "seen"


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


def make_model(end: str) -> ScriptedModel:
    """Create a model for `RUNS` runs with this outcome plus one successful run."""

    def answer(request: Any) -> Any:
        prompt = request.messages[0].text
        if request.messages[-1].role == "tool":
            return {"ends": "Hi.", "fails": ProviderError("down")}.get(end, frames("-a-", frame=0.001))
        return "Hi." if prompt == "one more" else call("waits") if prompt == "tool" else call("look")

    return ScriptedModel(*[answer] * (2 * RUNS + 1))


async def read_until_kind(run: Run[Any], kind: str) -> None:
    """Read until an event kind appears, then drop the iterator."""
    async for event in run:
        if event.kind == kind:
            return


async def complete(run: Run[Any], _: str) -> None:
    assert (await run).output == "Hi."


async def fail(run: Run[Any], _: str) -> None:
    with pytest.raises(RunError):
        await run


async def cancel_at_kind(run: Run[Any], kind: str) -> None:
    await read_until_kind(run, kind)
    run.cancel()
    with pytest.raises(RunCancelled):
        await run


ENDS: dict[str, tuple[str, str | None, Callable[[Run[Any], str], Awaitable[None]]]] = {
    "ends": ("completed", None, complete),
    "fails": ("failed", "error", fail),
    "is cancelled": ("canceled", "canceled", cancel_at_kind),
    "is abandoned": ("canceled", "canceled", read_until_kind),
}


@pytest.fixture
def young_heap() -> Generator[None]:
    """Exclude existing objects from collections, which would otherwise traverse the whole session each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged warnings, except about a blocked event loop, which a busy machine also causes."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "blocked the event loop" not in message]


@pytest.mark.usefixtures("young_heap")
async def test_followed_runs_leave_no_reference_cycles() -> None:
    model = ScriptedModel(*["Hi."] * 40)
    async with Runtime({"clerk": Agent(model)}, log=MemoryEventLog()) as runtime:

        async def follow() -> None:
            record = await runtime.start("clerk", "Hello")
            last = await runtime.follow(record.task_id).pipe(ops.take_last(1))
            assert last.kind == "status-update"
            async for _ in runtime.follow(record.task_id):
                pass

        assert await count_cycles(follow) == 0


@pytest.mark.usefixtures("young_heap")
async def test_waiting_requests_leave_no_reference_cycles() -> None:
    adapter = api(Runtime({"clerk": Agent(ScriptedModel(*["Hi."] * 40))}, log=MemoryEventLog()))
    async with adapter.gateway.runtime, httpx.AsyncClient(transport=httpx.ASGITransport(adapter)) as client:

        async def wait() -> None:
            response = await client.post("http://x/runs?wait=10", json={"input": "Hello"})
            assert response.json()["content"] == "Hi."

        async def fail() -> None:
            response = await client.post("http://x/runs/unknown/say", json={"input": "Hello"})
            assert response.status_code == 404

        # The client itself leaves about 25 for each request. A task group would leave 50 more.
        assert await count_cycles(wait) < await count_cycles(fail) + 10


async def count_cycles(use: Callable[[], Awaitable[None]]) -> float:
    """Return the number of objects per call that only the garbage collector frees."""
    for _ in range(5):
        await use()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await use()
        await run_ready_tasks()
        return gc.collect() / 10
    finally:
        gc.enable()


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("end", ENDS)
async def test_a_thousand_runs_leak_nothing(end: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    state, reason, use = ENDS[end]
    model = make_model(end)
    agent = Agent(model, tools=[look, look_as_waits if end in ("ends", "fails") else waits])
    attempt_parts: list[weakref.ref[Any]] = []

    async def run_once(prompt: str) -> list[Event]:
        """Subscribe without keeping this run alive, and return its events."""
        run = agent.run(prompt)
        events: list[Event] = []
        run._attempt.recorder.hub.events.subscribe(events.append)
        attempt_parts.extend(
            weakref.ref(attempt_part)
            for attempt_part in (run._attempt, run._attempt.recorder.hub, run._attempt.info.scope)
        )
        await use(run, "tool-start" if prompt == "tool" else "content-delta")
        return events

    for _ in range(0, RUNS, BATCH):
        streams = await asyncio.gather(*(run_once("tool" if number % 2 else "model") for number in range(BATCH)))
        await wait_until(lambda: not other_tasks())
        for events in streams:
            assert_ended(events, state, reason)
            assert_numbered(events)
    assert len(attempt_parts) == 3 * RUNS
    assert model.open == 0
    assert (await agent.run("one more")).output == "Hi."
    model.requests.clear()
    gc.collect()
    assert [attempt_part() for attempt_part in attempt_parts if attempt_part() is not None] == []
    assert _warnings(caplog) == []


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.usefixtures("young_heap")
async def test_connection_that_is_accepted_while_a_server_stops_is_closed(turns: int) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serve_connections(handle) as port:
        client = socket.create_connection(("127.0.0.1", port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with client:
        # An abandoned connection would now cause a warning.
        gc.collect()


async def test_ended_run_has_no_subscribers() -> None:
    run = Agent(ScriptedModel(call("look"), "Hi."), tools=[look]).run("Go.")
    hub = run._attempt.recorder.hub
    run.events.subscribe(lambda _: None)
    run.text().subscribe(lambda _: None)
    iterator = aiter(run)
    await anext(iterator)
    assert hub.subscribers == 3
    await run
    assert hub.subscribers == 0
    assert run._attempt.holders == set()


def pool_states(provider: Any) -> list[str]:
    """Return connection states reported by httpcore."""
    return [
        "idle" if connection.is_idle() else connection.info()
        for client in provider._pool.clients
        for connection in list_connections(client)
    ]


@asynccontextmanager
async def endpoint(*replies: Reply) -> AsyncGenerator[tuple[Server, Any]]:
    async with start_server() as server:
        server.answer(*replies)
        provider = openai_chat("m", base_url=server.base_url, api_key="k", transport="httpx")
        try:
            yield server, provider
        finally:
            await provider.aclose()


CONNECTIONS = 100


async def test_connection_is_reused_after_a_completed_run() -> None:
    async with endpoint(text_reply("Hello ", "you.")) as (server, provider):
        agent = Agent(provider)
        for _ in range(CONNECTIONS):
            assert (await agent.run("Go.")).output == "Hello you."
        assert server.connections == 1
        assert pool_states(provider) == ["idle"]


@pytest.mark.parametrize("exit_kind", ["cancelled", "abandoned", "awaiter cancelled", "async with left"])
async def test_abandoned_runs_return_their_connections(exit_kind: str) -> None:
    async with endpoint(text_reply("Hello ", end="hang", finished=False)) as (server, provider):
        agent = Agent(provider)

        async def run_once() -> None:
            run = agent.run("Go.")
            if exit_kind == "async with left":
                async with run:
                    await read_until_kind(run, "content-delta")
            elif exit_kind == "awaiter cancelled":
                awaiter = asyncio.ensure_future(run.result())
                await read_until_kind(run, "content-delta")
                awaiter.cancel()
                await asyncio.wait([awaiter])
            elif exit_kind == "cancelled":
                await cancel_at_kind(run, "content-delta")
            else:
                await read_until_kind(run, "content-delta")

        for _ in range(0, CONNECTIONS, 20):
            await asyncio.gather(*(run_once() for _ in range(20)))
        async with asyncio.timeout(10):
            await server.all_closed.wait()
        await wait_until(lambda: not other_tasks() - server.tasks)
        assert pool_states(provider) == []
        server.answer(*[text_reply("Hi.")] * (len(server.requests) + 1))
        assert (await agent.run("one more")).output == "Hi."


async def test_aclose_of_agent_closes_its_sockets() -> None:
    async with start_server() as server:
        server.answer(text_reply("Hi."))
        agent = Agent(f"{server.base_url}#m")
        assert (await agent.run("Go.")).output == "Hi."
        assert server.open == 1
        await agent.aclose()
        async with asyncio.timeout(3):
            await server.all_closed.wait()


@asynccontextmanager
async def serve_app(app: FastAPI) -> AsyncGenerator[str]:
    """Serve an app on a real socket in the event loop of the test."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined, method-assign]
    task = asyncio.ensure_future(server.serve())
    await wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await stop_accepting(*server.servers)
        server.should_exit = True
        await task
        await abort_connections(server)


def make_app(agent: Agent[Any, Any], runs: list[tuple[weakref.ref[Run[Any]], list[Event]]], body_kind: str) -> FastAPI:
    app = FastAPI()

    @app.post("/ask")
    async def ask(question: str) -> StreamingResponse:
        run = agent.run(question)
        events: list[Event] = []
        run._attempt.recorder.hub.events.subscribe(events.append)
        runs.append((weakref.ref(run), events))

        async def body() -> AsyncIterator[bytes]:
            async with run:
                async for frame in run.sse(heartbeat=0.05):
                    yield frame

        frames = body() if body_kind == "async with" else run.sse(heartbeat=0.05)
        return StreamingResponse(frames, media_type="text/event-stream")

    return app


@pytest.mark.parametrize("body_kind", ["async with", "sse alone"])
async def test_connected_client_receives_all_public_events(body_kind: str) -> None:  # L136
    runs: list[Any] = []
    agent = Agent(ScriptedModel(call("look"), "Hi."), tools=[look])
    async with serve_app(make_app(agent, runs, body_kind)) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/ask", params={"question": "Go."})
    [(_, events)] = runs
    assert response.headers["content-type"].startswith("text/event-stream")
    event_ids = [line[4:] for line in response.text.split("\n") if line.startswith("id: ")]
    assert event_ids == [event.cursor for event in events if event.public]


@pytest.mark.parametrize("body_kind", ["async with", "sse alone"])
async def test_disconnected_client_cancels_the_run(body_kind: str, caplog: pytest.LogCaptureFixture) -> None:  # L137
    caplog.set_level(logging.WARNING)
    runs: list[Any] = []
    model = ScriptedModel(*[call("waits"), frames("-a-", frame=0.001)] * 10)
    agent = Agent(model, tools=[waits])
    async with serve_app(make_app(agent, runs, body_kind)) as url, httpx.AsyncClient() as client:

        async def disconnect_at_heartbeat() -> None:
            async with client.stream("POST", f"{url}/ask", params={"question": "Go."}) as response:
                async for data in response.aiter_bytes():
                    if HEARTBEAT in data:
                        return

        await asyncio.gather(*(disconnect_at_heartbeat() for _ in range(20)))
        assert len(runs) == 20
        async with asyncio.timeout(5):
            await wait_until(lambda: all(final_events(events) for _, events in runs))
        for _, events in runs:
            assert_ended(events, "canceled", "canceled")
        assert model.open == 0
        assert kinds(runs[0][1])[0] == "task"
    gc.collect()
    await run_ready_tasks()
    assert [run() for run, _ in runs] == [None] * 20
    assert other_tasks() == set()
    assert _warnings(caplog) == []
