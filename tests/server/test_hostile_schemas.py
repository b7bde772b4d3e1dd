"""Schemas and values of clients, which must not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, client_tool
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.tools import encode_in_parts
from rxloop.providers.vendors.presets import PRESETS
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.vendors.hostile_vendor import LoopMonitor

BLOCKED = 0.25
"""Maximum blocking time of the event loop in seconds. Less than 0.05 on an idle machine."""

NAMES = [f"d{number}" for number in range(60)]
BOMB = {
    "$ref": "#/$defs/d0",
    "$defs": {
        **{name: {"anyOf": [{"$ref": f"#/$defs/{other}"}] * 2} for name, other in pairwise(NAMES)},
        NAMES[-1]: {"type": "integer"},
    },
}
HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "alternatives": ({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": BOMB["$defs"]}, "x"),
    "states": ({"properties": {"a": {"pattern": ".{0,2000}x.{0,2000}y"}}}, "ab" * 10_000),
    "backtracking": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, "a" * 100_000 + "!"),
    "optional characters": ({"properties": {"a": {"pattern": "(?:[^a]?[^b]?[^c]?){0,300}$q"}}}, "ab漢" * 5_000),
    "values": ({"properties": {"a": {"items": {"anyOf": [{"const": n} for n in range(500)]}}}}, ["x"] * 5_000),
}


async def find_longest_block(run: Callable[[], Awaitable[object]]) -> float:
    """Return the longest time that the event loop was blocked, in CPU seconds. Use the best of three measurements."""
    measured: list[float] = []
    while len(measured) < 3 and (not measured or measured[-1] >= BLOCKED):
        monitor = LoopMonitor()
        beat = asyncio.create_task(monitor.beat())
        await asyncio.sleep(0.01)
        await run()
        await asyncio.sleep(0.005)
        beat.cancel()
        measured.append(monitor.longest)
    return min(measured)


async def start(client: httpx.AsyncClient, tool: dict[str, Any]) -> Any:
    answer = await client.post("/runs?wait=60", json={"input": "Go", "tools": [tool]})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("kind", HOSTILE)
async def test_arguments_of_hostile_client_tools_do_not_block_the_event_loop(kind: str) -> None:
    schema, value = HOSTILE[kind]
    calls = [call("check", a=value) for _ in range(4)]
    agent: Agent[Any, Any] = Agent(ScriptedModel(*[calls, "Done."] * 3), name="clerk", thoughts=False)
    async with serve_api(agent, log=MemoryEventLog()) as served, make_client(served.url) as client:
        runs: list[Any] = []

        async def run() -> None:
            runs.append(await start(client, {"name": "check", "parameters": {"type": "object", **schema}}))

        assert await find_longest_block(run) < BLOCKED
        assert {each["state"] for each in runs} == {"completed"}
        messages = await client.get(f"/contexts/{runs[0]['contextId']}/messages")
        assert messages.text.count("do not fit, and it was not called") == 4


@pytest.mark.parametrize("kind", HOSTILE)
async def test_answers_to_hostile_client_tools_do_not_block_the_event_loop(kind: str) -> None:
    schema, value = HOSTILE[kind]
    tool = client_tool("check", result={"type": "object", **schema})
    agent: Agent[Any, Any] = Agent(ScriptedModel(call("check"), "Done."), tools=[tool], name="clerk", thoughts=False)
    async with serve_api(agent, log=MemoryEventLog()) as served, make_client(served.url) as client:
        run = (await client.post("/runs?wait=60", json={"input": "Go"})).json()
        [question] = run["pending"]
        answers = {"inputs": {question["inputId"]: {"a": value}}}
        statuses: list[int] = []

        async def send() -> None:
            answer = await client.post(f"/runs/{run['taskId']}/resume?wait=60", json=answers)
            statuses.append(answer.status_code)

        assert await find_longest_block(send) < BLOCKED
        assert set(statuses) == {422}


LARGE: dict[str, dict[str, Any]] = {
    "chain": {"$ref": "#/$defs/a0", "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(4_000)}},
    "tuple": {"properties": {"a": {"prefixItems": [{"const": n} for n in range(4_000)]}}},
    "alternatives": {"anyOf": [{"properties": {"a": {"const": n}}} for n in range(2_000)]},
    "different alternatives": {"anyOf": [{"properties": {"a": {"minimum": n}}} for n in range(2_000)]},
    "enum": {"enum": [{"a": n} for n in range(4_000)]},
    "pattern": {"properties": {"a": {"pattern": "(?i)" + "[\\u0000-\\uffff]" * 280}}},
    "moved schemas": {
        "properties": {f"p{n}": {"$ref": f"#/properties/q{n}"} for n in range(2_000)}
        | {f"q{n}": {} for n in range(2_000)}
    },
}


@pytest.mark.parametrize("kind", LARGE)
async def test_conversion_of_large_schemas_does_not_block_the_event_loop(kind: str) -> None:
    async def encode() -> None:
        tool = ToolDefinition("check", "", {"type": "object", **LARGE[kind]})
        request = ModelRequest(messages=[Message.user("Go")], tools=(tool,))
        codec = ChatCodec("m", PRESETS["openai"], stream=True)
        assert b"check" in await encode_in_parts(lambda: codec.encode(request, lambda code, text: None))

    assert await find_longest_block(encode) < BLOCKED


async def test_hostile_definitions_are_refused_without_blocking_the_event_loop() -> None:
    agent: Agent[Any, Any] = Agent(ScriptedModel("Done."), name="clerk")
    hostile = [
        {"anyOf": [{}] * 6_000},
        {"properties": {"a": {"pattern": "(a{1,1000}){1,1000}"}}},
        {"properties": {f"p{n}": {"pattern": f"{n}{'[a-z]' * 300}"} for n in range(90)}},
        {"properties": {"k" * 100_000: {f"x{n}": {} for n in range(4_000)} | {"type": 5}}},
    ]
    async with serve_api(agent, log=MemoryEventLog()) as served, make_client(served.url) as client:
        for schema in hostile:
            body = {"input": "Go", "tools": [{"name": "check", "parameters": {"type": "object", **schema}}]}
            statuses: list[int] = []

            async def send(body: dict[str, Any] = body, statuses: list[int] = statuses) -> None:
                answer = await client.post("/runs", json=body)
                statuses.append(answer.status_code)
                assert len(answer.text) < 3_000

            assert await find_longest_block(send) < BLOCKED
            assert set(statuses) == {422}
