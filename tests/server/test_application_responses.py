"""Streaming responses of other web applications, whose runs must end when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from hypercorn.asyncio import serve
from hypercorn.config import Config
from sse_starlette.sse import EventSourceResponse
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

import rxloop
from rxloop import Agent, op, tool
from rxloop.testing import ScriptedModel, call, frames, turn
from support.api_server import serve_app
from support.run_checks import wait_until

STREAMS: dict[str, Callable[[Agent], Any]] = {
    "run": lambda agent: agent.run("Go."),
    "events": lambda agent: agent.run("Go.").events,
    "stream": lambda agent: agent.run("Go.").stream(overflow="block", buffer=2),
    "text": lambda agent: agent.run("Go.").text(),
    "pipe": lambda agent: agent.run("Go.").pipe(op.text()),
    "sse": lambda agent: agent.run("Go.").sse(),
    "merge": lambda agent: rxloop.merge(agent.run("Go.")),
    "observe": lambda agent: agent.observe("Go."),
    "observe-pipe": lambda agent: agent.observe("Go.").pipe(op.text()),
    "map": lambda agent: agent.map(["Go."]),
}


@contextlib.asynccontextmanager
async def serve_with_hypercorn(app: Any) -> AsyncGenerator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1
    stop = asyncio.Event()
    server = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient() as client:
        while True:
            with contextlib.suppress(httpx.ConnectError):
                await client.get(url)
                break
            await asyncio.sleep(0.01)
    try:
        yield url
    finally:
        stop.set()
        await server


@pytest.fixture
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def iterate_temporary(make: Callable[[], Any]) -> AsyncGenerator[bytes]:
    async for _ in make():
        yield b"x\n"


async def iterate_variable(make: Callable[[], Any]) -> AsyncGenerator[bytes]:
    stream = make()
    async for _ in stream:
        yield b"x\n"


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("run_server", "response_type", "has_middleware", "body"),
    [
        (serve_app, StreamingResponse, False, iterate_temporary),
        (serve_app, StreamingResponse, False, iterate_variable),
        (serve_app, StreamingResponse, True, iterate_variable),
        (serve_app, EventSourceResponse, False, iterate_variable),
        (serve_with_hypercorn, StreamingResponse, False, iterate_variable),
        (serve_with_hypercorn, StreamingResponse, True, iterate_temporary),
        (serve_with_hypercorn, EventSourceResponse, False, iterate_temporary),
    ],
)
async def test_run_ends_when_its_client_disconnects(
    run_server: Any, response_type: Any, has_middleware: bool, body: Any
) -> None:  # P17
    cancelled: list[str] = []

    @tool
    async def slow() -> str:
        """Work for five seconds."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return "done"

    models = {
        (name, action): ScriptedModel(turn("Wait.", calls=[call("slow")]) if action == "tool" else frames("-a-", 0.01))
        for name in STREAMS
        for action in ("tool", "model")
    }
    app = FastAPI()

    @app.get("/{name}/{action}")
    async def get(name: str, action: str) -> Response:
        agent = Agent(models[name, action], tools=[slow])
        return response_type(body(lambda: STREAMS[name](agent)))

    if has_middleware:

        async def dispatch(request: Request, proceed: Any) -> Any:
            return await proceed(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)

    async def disconnect(client: httpx.AsyncClient, name: str, action: str) -> None:
        model = models[name, action]
        async with client.stream("GET", f"/{name}/{action}"):
            await wait_until(lambda: model.requests)
            # Disconnect while the application is waiting for the next event.
            await asyncio.sleep(0.5)

    async with run_server(app) as url, httpx.AsyncClient(base_url=url) as client:
        await asyncio.gather(*(disconnect(client, *each) for each in models))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await wait_until(
                    lambda: len(cancelled) == len(STREAMS) and not any(model.open for model in models.values())
                )
    assert [each for each, model in models.items() if model.open] == []
    assert len(cancelled) == len(STREAMS)
    assert [len(model.requests) for model in models.values()] == [1] * len(models)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("has_middleware", [False, True])
@pytest.mark.parametrize("size", [1, 20_000])
@pytest.mark.parametrize("run_server", [serve_app, serve_with_hypercorn])
async def test_run_ends_when_its_client_disconnects_during_a_send(
    run_server: Any, has_middleware: bool, size: int
) -> None:
    # P17
    models = [ScriptedModel(frames("-a" * 20_000, 0.001)) for _ in range(8)]
    app = FastAPI()

    async def body(model: ScriptedModel) -> AsyncGenerator[bytes]:
        async for _ in Agent(model).run("Go."):
            yield b"x\n" * size

    @app.get("/{number}")
    async def get(number: int) -> Response:
        return StreamingResponse(body(models[number]))

    if has_middleware:

        async def dispatch(request: Request, proceed: Any) -> Any:
            return await proceed(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)

    async def disconnect(client: httpx.AsyncClient, number: int) -> None:
        async with client.stream("GET", f"/{number}"):
            await wait_until(lambda: models[number].open)
            # Fill the buffers by not reading the response.
            await asyncio.sleep(0.3 + number * 0.003)

    async with run_server(app) as url, httpx.AsyncClient(base_url=url) as client:
        await asyncio.gather(*(disconnect(client, number) for number in range(len(models))))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await wait_until(lambda: not any(model.open for model in models))
    assert [number for number, model in enumerate(models) if model.open] == []
