"""The WebSocket adapter of the example, with a real server and the clients of `websockets`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.protocol import public_events
from rxloop.protocol.events import Event
from rxloop.server import ServerLimits, bearer
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import TOKENS, serve_app

PATH = Path(__file__).parents[2] / "examples/websocket_adapter.py"
SECONDS = 10.0


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("websocket_adapter", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # pydantic resolves annotations in the module of a model.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Server:
    def __init__(self, url: str, app: Any, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url.replace("http", "ws"), app, runtime

    def connect(self, token: str = "ann-key") -> connect:
        return connect(self.url, additional_headers={"Authorization": f"Bearer {token}"})


@contextlib.asynccontextmanager
async def serve(example: Any, *agents: Agent[Any, Any], **options: Any) -> AsyncGenerator[Server]:
    """Serve the adapter, and check that no stream is left."""
    runtime = Runtime({each.name: each for each in agents}, log=MemoryEventLog(), grace=0.5)
    async with asyncio.timeout(SECONDS), runtime:
        app = example.WebSocketAdapter(runtime, **{"auth": bearer(TOKENS), **options})
        async with serve_app(app) as url:
            yield Server(url, app, runtime)
            await app.drain(0.2)
        assert not app.gateway._open
        assert not any(app.gateway._account.count(name, "streams") for name in TOKENS.values())
    for agent in agents:
        await agent.aclose()


async def start(client: ClientConnection, text: str = "Hello") -> None:
    await client.send(json.dumps({"input": text}))


async def read(client: ClientConnection, until: str | None = None) -> list[Any]:
    """Read events and errors until a kind of event, or until the socket closes."""
    found: list[Any] = []
    with contextlib.suppress(ConnectionClosed):
        while until is None or not found or found[-1].get("kind") != until:
            found += [json.loads(line) for line in (await client.recv()).splitlines() if line]
    return found


async def test_client_gets_every_public_event_in_order_and_then_the_close_of_a_complete_run(example: Any) -> None:
    async with serve(example, Agent(ScriptedModel(frames("-It is-7 C.|", 0.001)))) as served:
        async with served.connect() as client:
            await start(client)
            seen = await read(client)
        recorded = await served.runtime.log.read(seen[0]["taskId"])

    durable = [event for each in seen if (event := Event.from_json(json.dumps(each))).durable]
    assert durable == public_events(recorded)
    assert "".join(each["delta"] for each in seen if each["kind"] == "content-delta") == "It is7 C."
    assert (client.close_code, seen[-1]["state"]) == (1000, "completed")


async def test_answer_over_the_socket_continues_the_run(example: Any) -> None:
    model = ScriptedModel(call("pay", amount=3), "Done.")
    async with serve(example, Agent(model, tools=[pay])) as served, served.connect() as client:
        await start(client)
        question = (await read(client, "input-required"))[-1]["input"]
        await client.send(json.dumps({"answer": {question["inputId"]: True}}))
        seen = await read(client)

    assert (client.close_code, seen[-1]["content"]) == (1000, "Done.")


async def test_refused_command_is_an_error_message_and_the_stream_continues(example: Any) -> None:
    model = ScriptedModel(call("pay", amount=3), "Done.")
    async with serve(example, Agent(model, tools=[pay])) as served, served.connect() as client:
        await start(client)
        question = (await read(client, "input-required"))[-1]["input"]
        for wrong in ("no JSON", '{"cancel": "maybe"}', '{"answer": {"nothing": true}}'):
            await client.send(wrong)
        await client.send(json.dumps({"answer": {question["inputId"]: True}}))
        seen = await read(client)

    errors = [each["error"] for each in seen if "error" in each and "kind" not in each]
    assert errors[:2] == ["the message cannot be parsed", "the message is invalid"]
    assert "is not waiting for this answer" in errors[2]
    assert (len(errors), client.close_code, seen[-1]["content"]) == (3, 1000, "Done.")


async def test_cancel_over_the_socket_cancels_the_run(example: Any) -> None:
    async with serve(example, Agent(ScriptedModel(frames("-It-is", 0.01)))) as served, served.connect() as client:
        await start(client)
        await read(client, "content-delta")
        await client.send('{"cancel": true}')
        seen = await read(client)

    assert (client.close_code, seen[-1]["state"]) == (1000, "canceled")


@pytest.mark.parametrize(
    ("first", "code"), [("no JSON", 4400), ('{"input": 3}', 4422)], ids=["unreadable", "wrong type"]
)
async def test_first_message_that_does_not_fit_closes_the_socket(example: Any, first: str, code: int) -> None:
    async with serve(example, Agent(ScriptedModel())) as served, served.connect() as client:
        await client.send(first)
        assert await read(client) == []
        assert await served.runtime.log.list_runs() == []

    assert client.close_code == code


async def test_unknown_client_is_refused_by_the_close_code(example: Any) -> None:
    async with serve(example, Agent(ScriptedModel())) as served, served.connect("wrong") as client:
        assert await read(client) == []

    assert (client.close_code, client.close_reason) == (4401, "a valid token is required")


async def test_client_without_a_first_message_is_closed(example: Any) -> None:
    limits = ServerLimits(body_seconds=0.01)
    async with serve(example, Agent(ScriptedModel()), limits=limits) as served, served.connect() as client:
        assert await read(client) == []

    assert client.close_code == 4408


async def test_streams_of_a_principal_are_limited_and_a_refused_one_starts_nothing(example: Any) -> None:
    agent = Agent(ScriptedModel(frames("-It-is", 0.01)))
    async with serve(example, agent, limits=ServerLimits(streams=1)) as served, served.connect() as first:
        await start(first)
        await read(first, "content-delta")
        async with served.connect() as second:
            await start(second)
            assert await read(second) == []
        assert len(await served.runtime.log.list_runs()) == 1

    assert second.close_code == 4429


@pytest.mark.parametrize(("leaves", "state"), [("cancel", "canceled"), ("keep", "completed")])
async def test_client_that_leaves_cancels_the_run_or_keeps_it(example: Any, leaves: str, state: str) -> None:
    model = ScriptedModel(frames("-It-is-7 C.|", 0.05))
    async with serve(example, Agent(model), on_disconnect=leaves) as served:
        async with served.connect() as client:
            await start(client)
            seen = await read(client, "content-delta")
        events = [event async for event in served.runtime.log.follow(seen[0]["taskId"])]

    assert getattr(events[-1], "state", "") == state


async def test_drain_closes_the_socket_so_that_the_client_reconnects(example: Any) -> None:
    agent = Agent(ScriptedModel(call("pay", amount=3)), tools=[pay])
    async with serve(example, agent) as served, served.connect() as client:
        await start(client)
        await read(client, "input-required")
        await served.app.drain(0)
        await read(client)

    assert client.close_code == 1012


async def test_http_request_has_no_other_path(example: Any) -> None:
    async with serve(example, Agent(ScriptedModel())) as served, httpx.AsyncClient() as client:
        answer = await client.get(served.url.replace("ws", "http", 1) + "/runs")

    assert (answer.status_code, answer.text) == (404, "the path does not exist")
