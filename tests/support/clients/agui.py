"""The official client of AG-UI in a node process, against a server on a real port."""

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
from support.api_server import TOKENS, listening
from support.processes.services import CLIENTS, NODE


@dataclass
class Told:
    """What came of one run of the client."""

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

    def of(self, type: str) -> list[dict[str, Any]]:
        """The events of a type."""
        return [event for event in self.events if event["type"] == type]

    def checked(self) -> Told:
        """See that the client had nothing to complain about, and that the run came to its end."""
        assert self.error is None, self.error
        assert self.warnings == [], self.warnings
        assert self.types[-1] in ("RUN_FINISHED", "RUN_ERROR"), self.types
        return self


class Node:
    """The node process; it does one thing after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._names = (f"agent {number}" for number in itertools.count())

    async def ask(self, **command: Any) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps(command) + b"\n")
        return Told(**orjson.loads(await asyncio.wait_for(self._process.stdout.readline(), 60)))

    def agent(self, url: str, thread: str, *, token: str = "ann-key", path: str = "/") -> Client:
        """A client with a thread; it keeps its messages."""
        return Client(self, next(self._names), f"{url}{path}", thread, token)


class Client:
    """One agent of the client."""

    def __init__(self, node: Node, name: str, url: str, thread: str, token: str) -> None:
        self._node, self._name, self.thread = node, name, thread
        headers = {"authorization": f"Bearer {token}"}
        self._about = {"agent": name, "url": url, "headers": headers, "threadId": thread}
        self._said = itertools.count(1)

    async def say(
        self, text: str, *, abort_after: int | None = None, cut_after: int | None = None, **parameters: Any
    ) -> Told:
        """Say something, and run."""
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
    ) -> Told:
        """Run with what there is; stopped after so many events, or cut off after so many frames."""
        more = {"abortAfter": abort_after, "cutAfter": cut_after}
        return await self._node.ask(**self._about, say=list(say), set=set, parameters=parameters, **more)

    async def connect(self, **parameters: Any) -> Told:
        """Connect to the thread."""
        return await self._node.ask(**self._about, connect=True, parameters=parameters)


@contextlib.asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    """The official client."""
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


class Served:
    """A door with its address and its runtime."""

    def __init__(self, url: str, app: AgUi, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime


@contextlib.asynccontextmanager
async def door(*agents: Any, log: Any = None, **options: Any) -> AsyncGenerator[Served]:
    """Serve agents over AG-UI, with the users of `TOKENS`, and see that nothing of it is left."""
    from rxloop import MemoryEventLog

    options = {"auth": bearer(TOKENS), **options}
    runtime = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(keep_deltas=True), grace=0.5)
    async with runtime:
        app = agui(runtime, **options)
        async with listening(app) as url:
            yield Served(url, app, runtime)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()
