"""Official clients of several servers: npm packages in one Node process, and the MCP client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx2
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from rxloop import EventLog
from rxloop.server.core import chat_changes as to
from rxloop.server.core.chat_fold import ChatFold
from support.clients.mcp import LEGACY, MODERN, result_text
from support.processes.services import CLIENTS, NODE

KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "AG-UI": ("Agui", {}),
    "AI SDK, Chat": ("AiChat", {}),
    "AI SDK, readUIMessageStream": ("AiReader", {}),
    "OpenAI": ("Responses", {"background": False}),
    "OpenAI, in the background": ("Responses", {"background": True}),
    "A2A, JSON-RPC": ("A2a", {"binding": "JSONRPC"}),
    "A2A, REST": ("A2a", {"binding": "HTTP+JSON"}),
}
"""Clients of the Node process."""
MCP = {"MCP 2026-07-28": MODERN, "MCP 2025-11-25": LEGACY}
_STATES = {
    "success": "completed",
    "interrupt": "input-required",
    "cancelled": "canceled",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_INPUT_REQUIRED": "input-required",
}
"""Run states by the terms of the protocols."""


class ClientView(NamedTuple):
    """Texts and calls that a client displays, in order."""

    state: str | None
    told: list[Any]
    pieces: int
    """Number of received pieces."""
    errors: list[str]


class UnknownRun(Exception):
    """The connection failed before the client received the id of its run, so it cannot resume."""


class OfficialClient(Protocol):
    """Client with its own conversation."""

    async def send(self, url: str, said: str) -> ClientView:
        """Send a message and read the response."""
        ...

    async def reconnect(self, url: str) -> ClientView:
        """Reconnect after a lost connection."""
        ...

    async def answer(self, url: str, approved: bool) -> ClientView:
        """Answer the pending question."""
        ...

    async def task_id(self) -> str:
        """Return the id of the run once it exists."""
        ...


class Node:
    """Node process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            waiting = self._waiting.pop(said["number"])
            if not waiting.done():
                waiting.set_result(said)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"error": "the node process is over"})

    async def do(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"number": number, **command}).encode() + b"\n")
        said = await waiting
        if "error" in said:
            raise UnknownRun if "never heard" in said["error"] else ConnectionError(said["error"])
        return said["result"]


class NpmClient:
    """Client in the Node process."""

    def __init__(self, node: Node, name: str, log: EventLog) -> None:
        self._node, self._name, self._log = node, name, log

    async def open(self, kind: str) -> NpmClient:
        which, options = KINDS[kind]
        await self._node.do(client=self._name, verb="open", kind=which, context=self._name, **options)
        return self

    async def _do(self, verb: str, url: str = "", **more: Any) -> ClientView:
        shown = ClientView(**await self._node.do(client=self._name, verb=verb, url=url, **more))
        return shown._replace(state=_STATES.get(shown.state or "", shown.state))

    async def send(self, url: str, said: str) -> ClientView:
        return await self._do("say", url, said=said)

    async def reconnect(self, url: str) -> ClientView:
        if not await self._log.list_runs(context_id=self._name, limit=1):
            raise UnknownRun
        return await self._do("back", url)

    async def answer(self, url: str, approved: bool) -> ClientView:
        return await self._do("answer", url, said=approved)

    async def cancel(self, url: str) -> ClientView:
        return await self._do("cancel", url)

    async def shown(self) -> ClientView:
        return await self._do("shown")

    async def task_id(self) -> str:
        while not (found := await self._log.list_runs(context_id=self._name, newest_first=True, limit=1)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found[0].task_id


class McpReplicaClient:
    """MCP client. A call with a lost connection is repeated with the same idempotency key."""

    def __init__(self, name: str, mode: str) -> None:
        self._key, self._mode = name, mode
        self._task: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._said = ""
        self._waits: list[dict[str, Any]] = []

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        found = re.search(r"\(run (\S+)\)", message or "")
        if found and not self._task.done():
            self._task.set_result(found[1])

    async def _call(self, url: str, tool: str, **arguments: Any) -> ClientView:
        transport = streamable_http_client(f"{url}/mcp", http_client=(http := httpx2.AsyncClient(timeout=60)))
        meta: Any = {"rxloop/key": self._key}
        async with http, McpClient(transport, mode=self._mode) as client:
            done = await client.call_tool(tool, arguments, progress_callback=self._progress, meta=meta)
        about = done.meta or {}
        self._waits = (done.structured_content or {}).get("questions", [])
        errors = [result_text(done)] if done.is_error and about.get("rxloop/state") != "canceled" else []
        return ClientView(about.get("rxloop/state"), [["text", result_text(done)]], 0, errors)

    async def send(self, url: str, said: str) -> ClientView:
        self._said = said
        return await self._call(url, "clerk", prompt=said)

    async def reconnect(self, url: str) -> ClientView:
        return await self.send(url, self._said)

    async def answer(self, url: str, approved: bool) -> ClientView:
        answers = {each["inputId"]: approved for each in self._waits}
        return await self._call(url, "continue_run", task_id=await self._task, answers=answers)

    async def task_id(self) -> str:
        return await asyncio.shield(self._task)


@contextlib.asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    """Start the Node process with all packages loaded."""
    assert NODE is not None
    program = Path(__file__).with_name("replica_clients.mjs")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(NODE, program, CLIENTS, stdin=pipe, stdout=pipe, limit=1 << 26)
    made = Node(process)
    reading = asyncio.create_task(made.read())
    try:
        yield made
    finally:
        process.kill()
        await process.wait()
        await reading


_names = itertools.count(1)


async def open_client(node: Node, kind: str, log: EventLog) -> OfficialClient:
    """Open a client of a kind in a new conversation."""
    name = f"client-{next(_names)}"
    return McpReplicaClient(name, MCP[kind]) if kind in MCP else await NpmClient(node, name, log).open(kind)


async def fold_log(log: EventLog, task_id: str) -> list[Any]:
    """Return the reasoning, texts and calls of all complete steps of a run, folded from its log."""
    told: list[Any] = []
    texts: dict[str, str] = {}
    thoughts: dict[str, str] = {}
    calls: dict[str, list[Any]] = {}

    def take(item: to.Change | Any) -> None:
        match item:
            case to.TextDelta(_, id, delta):
                texts[id] = texts.get(id, "") + delta
            case to.ReasoningDelta(_, id, delta):
                thoughts[id] = thoughts.get(id, "") + delta
            case to.CallEnded(event, id, call):
                calls[id] = ["call", call.name, call.arguments, None]
            case to.CallResult(event, id):
                calls[id][3] = event.content
            case to.StepEnded(_, id, "complete"):
                told.extend(["reasoning", thoughts[each]] for each in thoughts if each.startswith(f"{id}:reasoning"))
                told.extend([["text", texts[id]]] if id in texts else [])
                told.extend(calls[each] for each in calls if each.startswith(f"{id}:"))
            case _:
                pass

    fold = ChatFold(take)
    for event in await log.read(task_id):
        if (public := event.to_public()) is not None:
            fold.take(public)
    return told


async def find_mismatches(kind: str, shown: ClientView, log: EventLog, task_id: str) -> list[str]:
    """Return the differences between the view of a client and the log of a finished run."""
    state, told = (await log.get_record(task_id)).state, await fold_log(log, task_id)
    if kind.startswith(("A2A", "MCP")):
        # These protocols only send the answer.
        told = told[-1:]
    wrong = [f"{kind}: {each}" for each in shown.errors]
    if shown.state != state:
        wrong.append(f"{kind}: it is {shown.state} and not {state}")
    if state == "completed" and shown.told != told:
        wrong.append(f"{kind}: {shown.told} and not {told}")
    return wrong
