"""HTTP API mounted in other applications and served by other servers."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypercorn.asyncio import serve
from hypercorn.config import Config

from rxloop import Agent, MemoryEventLog, Runtime, op
from rxloop.client import Client
from rxloop.server import api
from rxloop.testing import ScriptedModel, frames
from support.api_server import serve_app


async def test_addresses_include_the_prefix_of_a_fastapi_application() -> None:
    runtime = Runtime({"a": Agent(ScriptedModel("Hello."))}, log=MemoryEventLog(), grace=0.2)
    application = FastAPI()
    application.mount("/agents", api(runtime))
    async with runtime, serve_app(application) as url, Client(f"{url}/agents") as client:
        run = await client.start("a", "Hi", wait=10)
        async with httpx.AsyncClient(base_url=url) as plain:
            assert run.events == f"/agents/runs/{run.task_id}/events"
            assert (await plain.get(run.events)).status_code == 200
            document = (await plain.get("/agents/openapi.json")).json()
            missing = await plain.get("/agents/nothing")
        assert document["servers"] == [{"url": "/agents"}]
        error = missing.json()["error"]
        assert error["code"] == "not_found"
        assert error["message"] == "the path does not exist"
        assert [event.kind async for event in client.follow(run.task_id)][-1] == "status-update"


async def test_runtime_that_is_not_entered_is_reported_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    application = FastAPI()
    application.mount("/agents", api(Runtime({"a": Agent(ScriptedModel("Hello."))}, log=MemoryEventLog())))
    async with serve_app(application) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/agents/runs", json={"input": "Hi"})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    [message] = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert message == "Runtime is not open; use `async with runtime:` in the lifespan of the application"


async def test_run_can_be_followed_under_hypercorn_and_a_disconnect_is_noticed() -> None:
    model = ScriptedModel(frames("-It -is -7 C.|", 0.001), frames("-on and on", 0.01))
    runtime = Runtime({"a": Agent(model)}, log=MemoryEventLog(), grace=0.2)
    app: Any = api(runtime)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 1
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))  # pyright: ignore[reportArgumentType]
    async with Client(f"http://127.0.0.1:{port}") as client:
        run = await client.start("a", "Weather?")
        text = [text async for text in client.follow(run.task_id).pipe(op.text())]
        assert "".join(text) == "It is 7 C."
        endless = await client.start("a", "Go on")
        async for event in client.follow(endless.task_id):
            if event.kind == "content-delta":
                break
        async with asyncio.timeout(5):
            await app.gateway._closed.wait()
        await client.cancel(endless.task_id)
    stop.set()
    await serving
