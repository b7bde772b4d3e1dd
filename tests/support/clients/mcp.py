"""Agents served over MCP, and official clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.server import McpServer, bearer, mcp_server
from support.api_server import TOKENS, serve_app

LEGACY, MODERN = "legacy", "2026-07-28"
ERAS = [LEGACY, MODERN]
"""Client modes: with a handshake (2025-11-25), or without (2026-07-28)."""
AnswerForm = Callable[[types.ElicitRequestParams], types.ElicitResult]


class McpEndpoint:
    """Endpoint of an MCP server."""

    def __init__(self, url: str, server: McpServer, runtime: Runtime) -> None:
        self.url, self.server, self.runtime = f"{url}/mcp", server, runtime

    @contextlib.asynccontextmanager
    async def client(
        self, mode: str, answer_form: AnswerForm | None = None, *, token: str | None = None
    ) -> AsyncGenerator[Client]:
        """Connect an official client with an optional elicitation handler."""

        async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            assert answer_form is not None
            return answer_form(params)

        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=elicit if answer_form else None) as client:
                yield client


@contextlib.asynccontextmanager
async def serve_mcp(
    *agents: Agent[Any, Any], log: EventLog | None = None, users: bool = False, **options: Any
) -> AsyncGenerator[McpEndpoint]:
    """Serve agents to MCP clients on a real port. Drain the server at the end."""
    runtime = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5)
    if users:
        options["auth"] = bearer(TOKENS)
    async with runtime:
        server = mcp_server(runtime, **options)
        async with serve_app(server) as url:
            yield McpEndpoint(url, server, runtime)
            await server.drain(0.2)
    for agent in agents:
        await agent.aclose()


def accept(**content: Any) -> AnswerForm:
    """Return a handler that accepts every form with this content."""
    return lambda params: types.ElicitResult(action="accept", content=content)


def result_text(result: types.CallToolResult) -> str:
    """Return the text content of a result."""
    first = result.content[0]
    assert isinstance(first, types.TextContent)
    return first.text


def result_meta(result: types.CallToolResult, name: str) -> str:
    """Return an rxloop metadata value of a result."""
    assert result.meta is not None
    return result.meta[f"rxloop/{name}"]


class ProgressRecorder:
    """Progress callback that records all notifications."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.messages: list[str] = []
        self.callbacks: dict[str, Callable[[], None]] = {}

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.numbers.append(progress)
        self.messages.append(message or "")
        for word, callback in self.callbacks.items():
            if word in (message or ""):
                callback()

    def call_on(self, word: str, callback: Callable[[], None]) -> ProgressRecorder:
        """Register a callback for messages containing a word."""
        self.callbacks[word] = callback
        return self


async def cancel_call(client: Client, word: str, **arguments: Any) -> None:
    """Call the agent `clerk` and cancel when its progress contains a word."""
    matched = asyncio.Event()
    recorder = ProgressRecorder().call_on(word, matched.set)
    task = asyncio.create_task(client.call_tool("clerk", {"prompt": "Go on", **arguments}, progress_callback=recorder))
    await matched.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
