"""Agents behind the MCP door, and official clients before it."""

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
from support.api_server import TOKENS, listening

LEGACY, MODERN = "legacy", "2026-07-28"
ERAS = [LEGACY, MODERN]
"""The modes of the client: the handshake of 2025-11-25, and 2026-07-28."""
Says = Callable[[types.ElicitRequestParams], types.ElicitResult]


class Desk:
    """A door with its address and its runtime."""

    def __init__(self, url: str, door: McpServer, runtime: Runtime) -> None:
        self.url, self.door, self.runtime = f"{url}/mcp", door, runtime

    @contextlib.asynccontextmanager
    async def client(self, mode: str, says: Says | None = None, *, token: str | None = None) -> AsyncGenerator[Client]:
        """An official client, with somebody before it who answers questions."""

        async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            assert says is not None
            return says(params)

        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=elicit if says else None) as client:
                yield client


@contextlib.asynccontextmanager
async def desk(
    *agents: Agent[Any, Any], log: EventLog | None = None, users: bool = False, **options: Any
) -> AsyncGenerator[Desk]:
    """Serve agents to clients of MCP on a real port, and see that nothing of it is left."""
    runtime = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5)
    if users:
        options["auth"] = bearer(TOKENS)
    async with runtime:
        door = mcp_server(runtime, **options)
        async with listening(door) as url:
            yield Desk(url, door, runtime)
            await door.drain(0.2)
    for agent in agents:
        await agent.aclose()


def accept(**content: Any) -> Says:
    """Somebody who fills in every form so."""
    return lambda asked: types.ElicitResult(action="accept", content=content)


def text(result: types.CallToolResult) -> str:
    """What people read of a result."""
    first = result.content[0]
    assert isinstance(first, types.TextContent)
    return first.text


def meta(result: types.CallToolResult, name: str) -> str:
    """What programs read of a result."""
    assert result.meta is not None
    return result.meta[f"rxloop/{name}"]


class Steps:
    """Takes the progress of a call."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.messages: list[str] = []
        self.waiting: dict[str, Callable[[], None]] = {}

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.numbers.append(progress)
        self.messages.append(message or "")
        for word, there in self.waiting.items():
            if word in (message or ""):
                there()

    def when(self, word: str, there: Callable[[], None]) -> Steps:
        """Do something once a message has that word."""
        self.waiting[word] = there
        return self


async def given_up(client: Client, word: str, **arguments: Any) -> None:
    """Call the clerk, and cancel the call once its progress has a word."""
    there = asyncio.Event()
    steps = Steps().when(word, there.set)
    calling = asyncio.create_task(client.call_tool("clerk", {"prompt": "Go on", **arguments}, progress_callback=steps))
    await there.wait()
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
