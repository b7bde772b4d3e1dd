"""A2A test server and official client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.server import A2A, a2a, bearer
from support.api_server import TOKENS, make_client, serve_app

BINDINGS = ["JSONRPC", "HTTP+JSON"]


class A2AEndpoint:
    """Endpoint of an A2A server."""

    def __init__(self, url: str, app: A2A, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime

    @contextlib.asynccontextmanager
    async def client(self, binding: str = "JSONRPC", token: str = "ann-key", **options: Any) -> AsyncGenerator[Client]:
        """Connect the official client with a token from `TOKENS`."""
        http = make_client(self.url, token)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], **options)
        async with http, await create_client(self.url, config) as client:
            yield client

    async def rpc(self, method: str, params: Any, token: str = "ann-key") -> httpx.Response:
        """Send a JSON-RPC request without the official client."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with make_client(self.url, token) as http:
            return await http.post("/rpc", json=body, headers={"a2a-version": "1.0"})


@contextlib.asynccontextmanager
async def serve_a2a(
    *agents: Agent[Any, Any], log: EventLog | None = None, runtime: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[A2AEndpoint]:
    """Serve an agent over A2A to the users in `TOKENS`. Drain the server at the end."""
    host = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5, **(runtime or {}))
    async with host:
        options = {"auth": bearer(TOKENS), **options}
        app = a2a(host, **options)
        async with serve_app(app) as url:
            yield A2AEndpoint(url, app, host)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()


_count = iter(range(10**9))


def message_request(text: str = "Hi", *, data: Any = None, config: Any = None, **fields: Any) -> pb.SendMessageRequest:
    """Return a request with a text or data message."""
    part = {"text": text} if data is None else {"data": data}
    message = {"messageId": f"m{next(_count)}", "role": "ROLE_USER", "parts": [part]}
    request = pb.SendMessageRequest(message=ParseDict(message, pb.Message()), configuration=config)
    request.message.MergeFrom(pb.Message(**fields))
    return request


async def collect_responses(responses: AsyncIterable[pb.StreamResponse]) -> list[pb.StreamResponse]:
    """Read all responses."""
    return [each async for each in responses]


async def read_task(responses: AsyncIterable[pb.StreamResponse]) -> pb.Task:
    """Return the task of a response without streaming."""
    [response] = await collect_responses(responses)
    return response.task


def answer_text(task: pb.Task) -> str:
    """Return the final answer of the agent."""
    [text] = [each.parts[0].text for each in task.artifacts if each.artifact_id == f"{task.id}:answer"]
    return text


def join_artifacts(responses: list[pb.StreamResponse]) -> dict[str, str]:
    """Assemble text artifacts from the streamed updates."""
    texts: dict[str, str] = {}
    for update in (each.artifact_update for each in responses if each.HasField("artifact_update")):
        before = texts.get(update.artifact.artifact_id, "") if update.append else ""
        texts[update.artifact.artifact_id] = before + "".join(part.text for part in update.artifact.parts)
    return texts


def task_states(responses: list[pb.StreamResponse]) -> list[str]:
    """Return the reported states without repeats."""
    tasks = [each.task if each.HasField("task") else each.status_update for each in responses]
    names = [pb.TaskState.Name(each.status.state)[11:] for each in tasks if each.HasField("status")]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]
