"""AG-UI server on a real port, and the official client in a Node process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rxloop import Runtime
from rxloop.server import AgUi, agui, bearer
from support.api_server import TOKENS, serve_app
from support.processes.services import CLIENTS, NODE


@dataclass
class ClientResult:
    """Result of one run in the client."""

    events: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    warnings: list[str]
    error: str | None = None
    result: Any = None
    state: Any = None
    pendingInterrupts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # noqa: N815
    newMessages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # noqa: N815

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    def select(self, type: str) -> list[dict[str, Any]]:
        """Return the events of a type."""
        return [event for event in self.events if event["type"] == type]

    def check(self) -> ClientResult:
        """Assert that the client reported no error or warning and that the run ended. Return the result."""
        assert self.error is None, self.error
        assert self.warnings == [], self.warnings
        assert self.types[-1] in ("RUN_FINISHED", "RUN_ERROR"), self.types
        return self


class Node:
    """Node process that executes commands one at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._names = (f"agent {number}" for number in itertools.count())

    async def ask(self, **command: Any) -> ClientResult:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps(command) + b"\n")
        return ClientResult(**orjson.loads(await asyncio.wait_for(self._process.stdout.readline(), 60)))

    def agent(self, url: str, thread: str, *, token: str = "ann-key", path: str = "/") -> Client:
        """Return a client for a thread. It keeps its messages."""
        return Client(self, next(self._names), f"{url}{path}", thread, token)


class Client:
    """Client for one thread."""

    def __init__(self, node: Node, name: str, url: str, thread: str, token: str) -> None:
        self._node, self._name, self.thread = node, name, thread
        headers = {"authorization": f"Bearer {token}"}
        self._about = {"agent": name, "url": url, "headers": headers, "threadId": thread}
        self._said = itertools.count(1)

    async def send(
        self, text: str, *, abort_after: int | None = None, cut_after: int | None = None, **parameters: Any
    ) -> ClientResult:
        """Send a message and run the agent."""
        message = {
            "id": f"{self._name}:{self.thread}:{next(self._said)}".replace(" ", "-"),
            "role": "user",
            "content": text,
        }
        return await self.run(say=[message], abort_after=abort_after, cut_after=cut_after, **parameters)

    async def run(
        self,
        *,
        say: Any = (),
        set: Any = None,
        abort_after: int | None = None,
        cut_after: int | None = None,
        **parameters: Any,
    ) -> ClientResult:
        """Run the agent. Abort after a number of events, or disconnect after a number of frames."""
        more = {"abortAfter": abort_after, "cutAfter": cut_after}
        return await self._node.ask(**self._about, say=list(say), set=set, parameters=parameters, **more)

    async def connect(self, **parameters: Any) -> ClientResult:
        """Connect to the thread."""
        return await self._node.ask(**self._about, connect=True, parameters=parameters)


@contextlib.asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    """Start the Node process of the official client."""
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(Path(__file__).with_name("agui_client.mjs")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 26,
        env={**os.environ, "CLIENTS": str(CLIENTS)},
    )
    try:
        yield Node(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class AgUiEndpoint:
    """AG-UI server with its URL and runtime."""

    def __init__(self, url: str, app: AgUi, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime


@contextlib.asynccontextmanager
async def serve_agui(*agents: Any, log: Any = None, **options: Any) -> AsyncGenerator[AgUiEndpoint]:
    """Serve agents over AG-UI to the users in `TOKENS`. Drain the server at the end."""
    from rxloop import MemoryEventLog

    options = {"auth": bearer(TOKENS), **options}
    runtime = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(keep_deltas=True), grace=0.5)
    async with runtime:
        app = agui(runtime, **options)
        async with serve_app(app) as url:
            yield AgUiEndpoint(url, app, runtime)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()
