"""A run that the body of a web application reads ends when the client leaves."""

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

WAYS: dict[str, Callable[[Agent], Any]] = {
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
async def on_hypercorn(app: Any) -> AsyncGenerator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1
    over = asyncio.Event()
    server = asyncio.create_task(serve(app, config, shutdown_trigger=over.wait))
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
        over.set()
        await server


@pytest.fixture
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def temporary(make: Callable[[], Any]) -> AsyncGenerator[bytes]:
    async for _ in make():
        yield b"x\n"


async def variable(make: Callable[[], Any]) -> AsyncGenerator[bytes]:
    stream = make()
    async for _ in stream:
        yield b"x\n"


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("on", "answer", "inside", "body"),
    [
        (serve_app, StreamingResponse, False, temporary),
        (serve_app, StreamingResponse, False, variable),
        (serve_app, StreamingResponse, True, variable),
        (serve_app, EventSourceResponse, False, variable),
        (on_hypercorn, StreamingResponse, False, variable),
        (on_hypercorn, StreamingResponse, True, temporary),
        (on_hypercorn, EventSourceResponse, False, temporary),
    ],
)
async def test_a_run_ends_when_its_client_leaves(on: Any, answer: Any, inside: bool, body: Any) -> None:  # P17
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
        (name, doing): ScriptedModel(turn("Wait.", calls=[call("slow")]) if doing == "tool" else frames("-a-", 0.01))
        for name in WAYS
        for doing in ("tool", "model")
    }
    app = FastAPI()

    @app.get("/{name}/{doing}")
    async def get(name: str, doing: str) -> Response:
        agent = Agent(models[name, doing], tools=[slow])
        return answer(body(lambda: WAYS[name](agent)))

    if inside:

        async def dispatch(request: Request, proceed: Any) -> Any:
            return await proceed(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)

    async def leave(client: httpx.AsyncClient, name: str, doing: str) -> None:
        model = models[name, doing]
        async with client.stream("GET", f"/{name}/{doing}"):
            await wait_until(lambda: model.requests)
            # The application has sent what there is, and waits for the next event.
            await asyncio.sleep(0.5)

    async with on(app) as url, httpx.AsyncClient(base_url=url) as client:
        await asyncio.gather(*(leave(client, *each) for each in models))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await wait_until(
                    lambda: len(cancelled) == len(WAYS) and not any(model.open for model in models.values())
                )
    assert [each for each, model in models.items() if model.open] == []
    assert len(cancelled) == len(WAYS)
    assert [len(model.requests) for model in models.values()] == [1] * len(models)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("size", [1, 20_000])
@pytest.mark.parametrize("on", [serve_app, on_hypercorn])
async def test_a_run_ends_when_its_client_leaves_while_the_response_sends(on: Any, inside: bool, size: int) -> None:
    # P17
    models = [ScriptedModel(frames("-a" * 20_000, 0.001)) for _ in range(8)]
    app = FastAPI()

    async def body(model: ScriptedModel) -> AsyncGenerator[bytes]:
        async for _ in Agent(model).run("Go."):
            yield b"x\n" * size

    @app.get("/{number}")
    async def get(number: int) -> Response:
        return StreamingResponse(body(models[number]))

    if inside:

        async def dispatch(request: Request, proceed: Any) -> Any:
            return await proceed(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        async with client.stream("GET", f"/{number}"):
            await wait_until(lambda: models[number].open)
            # The client reads nothing, and the buffers fill.
            await asyncio.sleep(0.3 + number * 0.003)

    async with on(app) as url, httpx.AsyncClient(base_url=url) as client:
        await asyncio.gather(*(leave(client, number) for number in range(len(models))))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await wait_until(lambda: not any(model.open for model in models))
    assert [number for number, model in enumerate(models) if model.open] == []
