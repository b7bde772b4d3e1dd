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
from support.processes.services import CLIENTS, COPILOTKIT, NODE


@dataclass
class ClientResult:
    """Client-side result of a run."""

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

    def pending_calls(self, *tools: str) -> list[str]:
        """Return the ids of calls of client tools without a result.

        Clients before 1.0 receive no list of them. They look for calls without a result in their messages.
        """
        outcome = self.last.get("outcome")
        if self.last["type"] == "RUN_ERROR" or outcome is not None:
            return (outcome or {}).get("pendingToolCallIds", [])
        answered = {each["toolCallId"] for each in self.messages if each["role"] == "tool"}
        calls = [call for each in self.messages for call in each.get("toolCalls", ())]
        return [each["id"] for each in calls if each["function"]["name"] in tools and each["id"] not in answered]

    def select(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type]

    def check(self) -> ClientResult:
        """Assert that the client reported no error or warning and that the run ended. Return the result."""
        assert self.error is None, self.error
        assert self.warnings == [], self.warnings
        assert self.types[-1] in ("RUN_FINISHED", "RUN_ERROR"), self.types
        return self


class Node:
    """Node process that executes one command at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._names = (f"agent {number}" for number in itertools.count())

    async def ask(self, **command: Any) -> ClientResult:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps(command) + b"\n")
        return ClientResult(**orjson.loads(await asyncio.wait_for(self._process.stdout.readline(), 60)))

    def agent(
        self, url: str, thread: str, *, token: str = "ann-key", path: str = "/", reload_of: Client | None = None
    ) -> Client:
        """Return a client for a thread. It keeps its messages.

        Args:
            url: URL of the server.
            thread: Thread id.
            token: Token of the user.
            path: Path of the adapter.
            reload_of: Page of CopilotKit that is loaded again.
        """
        return Client(self, next(self._names), f"{url}{path}", thread, token, reload_of)


class Client:
    """Client for one thread."""

    def __init__(self, node: Node, name: str, url: str, thread: str, token: str, reload_of: Client | None) -> None:
        self._node, self._name, self.thread = node, name, thread
        headers = {"authorization": f"Bearer {token}"}
        self._about = {"agent": name, "url": url, "headers": headers, "threadId": thread}
        if reload_of is not None:
            self._about["reloadOf"] = reload_of._name
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
        clears: bool = False,
        **parameters: Any,
    ) -> ClientResult:
        """Run the agent.

        Args:
            say: Messages to add.
            set: Messages that replace the messages of the client.
            abort_after: Number of events after which the client aborts.
            cut_after: Number of frames after which the connection breaks.
            clears: Whether the client discards its interrupts when a run fails.
            parameters: Parameters of `runAgent`.
        """
        more = {"abortAfter": abort_after, "cutAfter": cut_after, "clears": clears}
        return await self._node.ask(**self._about, say=list(say), set=set, parameters=parameters, **more)

    async def connect(self, **parameters: Any) -> ClientResult:
        """Connect to the thread."""
        return await self._node.ask(**self._about, connect=True, parameters=parameters)


def node(packages: Path = CLIENTS) -> contextlib.AbstractAsyncContextManager[Node]:
    """Start the Node process of the official client.

    Args:
        packages: Folder with the version of the client. `COPILOTKIT` has the version before 1.0 that CopilotKit uses.
    """
    return _start("agui_client.mjs", packages)


def copilotkit() -> contextlib.AbstractAsyncContextManager[Node]:
    """Start a Node process with pages and runtimes of CopilotKit.

    They execute client tools, with the `result` that is passed to `Client.run`, and continue the run.
    """
    return _start("copilotkit_client.mjs", COPILOTKIT)


@contextlib.asynccontextmanager
async def _start(program: str, packages: Path) -> AsyncGenerator[Node]:
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(Path(__file__).with_name(program)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 26,
        env={**os.environ, "CLIENTS": str(packages), "COPILOTKIT_TELEMETRY_DISABLED": "true"},
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
