"""A thousand runs of every kind of end leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from rxloop import Agent, RunContext, tool
from rxloop.errors import ProviderError, RunCancelled, RunError
from rxloop.protocol.events import Event
from rxloop.providers import openai_chat
from rxloop.run.handle import Run
from rxloop.stream.readers import HEARTBEAT
from rxloop.testing import ScriptedModel, call, frames
from support.http_server import Reply, Server, connections, say, serving
from support.run_checks import assert_ended, assert_numbered, finals, kinds, other_tasks, settled, until

RUNS = 1_000
AT_ONCE = 100


@tool
async def look(ctx: RunContext) -> str:
    """Look."""
    ctx.progress("looking")
    await asyncio.sleep(0)
    return "seen"


@tool(name="waits")
async def look_too() -> str:
    """Look."""
    return "seen"


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


def model_for(end: str) -> ScriptedModel:
    """A model for `RUNS` runs that come to that end, those who ask for it in a tool, and for one that answers."""

    def answer(request: Any) -> Any:
        asked = request.messages[0].text
        if request.messages[-1].role == "tool":
            return {"ends": "Hi.", "fails": ProviderError("down")}.get(end, frames("-a-", frame=0.001))
        return "Hi." if asked == "one more" else call("waits") if asked == "tool" else call("look")

    return ScriptedModel(*[answer] * (2 * RUNS + 1))


async def reached(run: Run[Any], kind: str) -> None:
    """Read the run up to an event of a kind, and let go of what was read."""
    async for event in run:
        if event.kind == kind:
            return


async def ends(run: Run[Any], _: str) -> None:
    assert (await run).output == "Hi."


async def fails(run: Run[Any], _: str) -> None:
    with pytest.raises(RunError):
        await run


async def cancelled(run: Run[Any], kind: str) -> None:
    await reached(run, kind)
    run.cancel()
    with pytest.raises(RunCancelled):
        await run


ENDS: dict[str, tuple[str, str | None, Callable[[Run[Any], str], Awaitable[None]]]] = {
    "ends": ("completed", None, ends),
    "fails": ("failed", "error", fails),
    "is cancelled": ("canceled", "canceled", cancelled),
    "is abandoned": ("canceled", "canceled", reached),
}


@pytest.fixture
def young_heap() -> Generator[None]:
    """Only what is made from here on is for the collector, which otherwise goes over the whole session each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but for the time that a tool held the event loop: a busy machine takes it from the process."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "held the event loop" not in message]


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("end", ENDS)
async def test_a_thousand_runs_leave_nothing(end: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    state, reason, use = ENDS[end]
    model = model_for(end)
    agent = Agent(model, tools=[look, look_too if end in ("ends", "fails") else waits])
    parts: list[weakref.ref[Any]] = []

    async def one(where: str) -> list[Event]:
        """The events of a run, got by a door that does not hold it."""
        run = agent.run(where)
        seen: list[Event] = []
        run._attempt.recorder.hub.events.subscribe(seen.append)
        parts.extend(weakref.ref(part) for part in (run._attempt, run._attempt.recorder.hub, run._attempt.info.scope))
        await use(run, "tool-start" if where == "tool" else "content-delta")
        return seen

    for _ in range(0, RUNS, AT_ONCE):
        streams = await asyncio.gather(*(one("tool" if number % 2 else "model") for number in range(AT_ONCE)))
        await until(lambda: not other_tasks())
        for seen in streams:
            assert_ended(seen, state, reason)
            assert_numbered(seen)
    assert len(parts) == 3 * RUNS
    assert model.open == 0
    assert (await agent.run("one more")).output == "Hi."
    model.requests.clear()
    gc.collect()
    assert [part() for part in parts if part() is not None] == []
    assert _warnings(caplog) == []


async def test_a_run_that_has_ended_has_no_subscriber_left() -> None:
    run = Agent(ScriptedModel(call("look"), "Hi."), tools=[look]).run("Go.")
    hub = run._attempt.recorder.hub
    run.events.subscribe(lambda _: None)
    run.text().subscribe(lambda _: None)
    iterator = aiter(run)
    await anext(iterator)
    assert hub.subscribers == 3
    await run
    assert hub.subscribers == 0
    assert run._attempt.holds == set()


def pool_states(provider: Any) -> list[str]:
    """What each connection of a provider is at, by httpcore's own word."""
    return [
        "idle" if connection.is_idle() else connection.info()
        for client in provider._pool.clients
        for connection in connections(client)
    ]


@asynccontextmanager
async def endpoint(*replies: Reply) -> AsyncGenerator[tuple[Server, Any]]:
    async with serving() as server:
        server.answer(*replies)
        provider = openai_chat("m", base_url=server.base_url, api_key="k", transport="httpx")
        try:
            yield server, provider
        finally:
            await provider.aclose()


CONNECTIONS = 100


async def test_runs_that_end_leave_connections_that_are_used_again() -> None:
    async with endpoint(say("Hello ", "you.")) as (server, provider):
        agent = Agent(provider)
        for _ in range(CONNECTIONS):
            assert (await agent.run("Go.")).output == "Hello you."
        assert server.connections == 1
        assert pool_states(provider) == ["idle"]


@pytest.mark.parametrize("how", ["cancelled", "abandoned", "awaiter cancelled", "async with left"])
async def test_runs_that_are_left_half_way_leave_no_connection_checked_out(how: str) -> None:
    async with endpoint(say("Hello ", end="hang", finished=False)) as (server, provider):
        agent = Agent(provider)

        async def one() -> None:
            run = agent.run("Go.")
            if how == "async with left":
                async with run:
                    await reached(run, "content-delta")
            elif how == "awaiter cancelled":
                waiting = asyncio.ensure_future(run.result())
                await reached(run, "content-delta")
                waiting.cancel()
                await asyncio.wait([waiting])
            elif how == "cancelled":
                await cancelled(run, "content-delta")
            else:
                await reached(run, "content-delta")

        for _ in range(0, CONNECTIONS, 20):
            await asyncio.gather(*(one() for _ in range(20)))
        async with asyncio.timeout(10):
            await server.all_closed.wait()
        await until(lambda: not other_tasks() - server.tasks)
        assert pool_states(provider) == []
        server.answer(*[say("Hi.")] * (len(server.requests) + 1))
        assert (await agent.run("one more")).output == "Hi."


async def test_after_aclose_of_an_agent_no_socket_is_left() -> None:
    async with serving() as server:
        server.answer(say("Hi."))
        agent = Agent(f"{server.base_url}#m")
        assert (await agent.run("Go.")).output == "Hi."
        assert server.open == 1
        await agent.aclose()
        async with asyncio.timeout(3):
            await server.all_closed.wait()


@asynccontextmanager
async def web(app: FastAPI) -> AsyncGenerator[str]:
    """A real server on a real socket, in the loop of the test."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined, method-assign]
    task = asyncio.ensure_future(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def endpoint_for(agent: Agent[Any, Any], runs: list[tuple[weakref.ref[Run[Any]], list[Event]]], way: str) -> FastAPI:
    app = FastAPI()

    @app.post("/ask")
    async def ask(question: str) -> StreamingResponse:
        run = agent.run(question)
        seen: list[Event] = []
        run._attempt.recorder.hub.events.subscribe(seen.append)
        runs.append((weakref.ref(run), seen))

        async def body() -> AsyncIterator[bytes]:
            async with run:
                async for frame in run.sse(heartbeat=0.05):
                    yield frame

        frames = body() if way == "async with" else run.sse(heartbeat=0.05)
        return StreamingResponse(frames, media_type="text/event-stream")

    return app


@pytest.mark.parametrize("way", ["async with", "sse alone"])
async def test_a_client_that_stays_gets_everything_and_the_response_ends(way: str) -> None:  # L136
    runs: list[Any] = []
    agent = Agent(ScriptedModel(call("look"), "Hi."), tools=[look])
    async with web(endpoint_for(agent, runs, way)) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/ask", params={"question": "Go."})
    [(_, seen)] = runs
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [line[4:] for line in response.text.split("\n") if line.startswith("id: ")]
    assert found == [event.cursor for event in seen if event.public]


@pytest.mark.parametrize("way", ["async with", "sse alone"])
async def test_a_client_that_leaves_ends_the_run(way: str, caplog: pytest.LogCaptureFixture) -> None:  # L137
    caplog.set_level(logging.WARNING)
    runs: list[Any] = []
    model = ScriptedModel(*[call("waits"), frames("-a-", frame=0.001)] * 10)
    agent = Agent(model, tools=[waits])
    async with web(endpoint_for(agent, runs, way)) as url, httpx.AsyncClient() as client:

        async def leave() -> None:
            async with client.stream("POST", f"{url}/ask", params={"question": "Go."}) as response:
                async for data in response.aiter_bytes():
                    if HEARTBEAT in data:
                        return

        await asyncio.gather(*(leave() for _ in range(20)))
        assert len(runs) == 20
        async with asyncio.timeout(5):
            await until(lambda: all(finals(seen) for _, seen in runs))
        for _, seen in runs:
            assert_ended(seen, "canceled", "canceled")
        assert model.open == 0
        assert kinds(runs[0][1])[0] == "task"
    gc.collect()
    await settled()
    assert [run() for run, _ in runs] == [None] * 20
    assert other_tasks() == set()
    assert _warnings(caplog) == []
