"""Official clients of all protocols. The npm packages share a Node process."""

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
from rxloop.server.core import chat_changes as changes
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
"""Client classes in the Node process, with options."""
MCP = {"MCP 2026-07-28": MODERN, "MCP 2025-11-25": LEGACY}
_STATES = {
    "success": "completed",
    "interrupt": "input-required",
    "cancelled": "canceled",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_INPUT_REQUIRED": "input-required",
}
"""Run states by protocol-specific state."""


class ClientView(NamedTuple):
    """Content displayed by a client, in order."""

    state: str | None
    items: list[Any]
    pieces: int
    """Number of received pieces."""
    errors: list[str]


class UnknownRun(Exception):
    """Raised if the connection failed before the client received its run id."""


class OfficialClient(Protocol):
    """Client of a single conversation."""

    async def send(self, url: str, message: str) -> ClientView:
        """Send a message and read the response."""
        ...

    async def reconnect(self, url: str) -> ClientView:
        """Reconnect after a lost connection."""
        ...

    async def answer(self, url: str, approved: bool) -> ClientView:
        """Answer the pending question."""
        ...

    async def task_id(self) -> str:
        """Wait for the run, returning its id."""
        ...


class Node:
    """Node process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._futures: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            future = self._futures.pop(message["number"])
            if not future.done():
                future.set_result(message)
        for future in self._futures.values():
            if not future.done():
                future.set_result({"error": "the node process has ended"})

    async def do(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        number = next(self._numbers)
        future = self._futures[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"number": number, **command}).encode() + b"\n")
        message = await future
        if "error" in message:
            raise UnknownRun if "never heard" in message["error"] else ConnectionError(message["error"])
        return message["result"]


class NpmClient:
    """Client in the Node process."""

    def __init__(self, node: Node, name: str, log: EventLog) -> None:
        self._node, self._name, self._log = node, name, log

    async def open(self, kind: str) -> NpmClient:
        class_name, options = KINDS[kind]
        await self._node.do(client=self._name, verb="open", kind=class_name, context=self._name, **options)
        return self

    async def _do(self, verb: str, url: str = "", **options: Any) -> ClientView:
        view = ClientView(**await self._node.do(client=self._name, verb=verb, url=url, **options))
        return view._replace(state=_STATES.get(view.state or "", view.state))

    async def send(self, url: str, message: str) -> ClientView:
        return await self._do("say", url, said=message)

    async def reconnect(self, url: str) -> ClientView:
        if not await self._log.list_runs(context_id=self._name, limit=1):
            raise UnknownRun
        return await self._do("back", url)

    async def answer(self, url: str, approved: bool) -> ClientView:
        return await self._do("answer", url, said=approved)

    async def cancel(self, url: str) -> ClientView:
        return await self._do("cancel", url)

    async def view(self) -> ClientView:
        return await self._do("view")

    async def task_id(self) -> str:
        while not (records := await self._log.list_runs(context_id=self._name, newest_first=True, limit=1)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return records[0].task_id


class McpReplicaClient:
    """MCP client. A call with a lost connection is repeated with the same idempotency key."""

    def __init__(self, name: str, mode: str) -> None:
        self._key, self._mode = name, mode
        self._task: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._prompt = ""
        self._questions: list[dict[str, Any]] = []

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        match = re.search(r"\(run (\S+)\)", message or "")
        if match and not self._task.done():
            self._task.set_result(match[1])

    async def _call(self, url: str, tool: str, **arguments: Any) -> ClientView:
        transport = streamable_http_client(f"{url}/mcp", http_client=(http := httpx2.AsyncClient(timeout=60)))
        meta: Any = {"rxloop/key": self._key}
        async with http, McpClient(transport, mode=self._mode) as client:
            result = await client.call_tool(tool, arguments, progress_callback=self._progress, meta=meta)
        meta = result.meta or {}
        self._questions = (result.structured_content or {}).get("questions", [])
        errors = [result_text(result)] if result.is_error and meta.get("rxloop/state") != "canceled" else []
        return ClientView(meta.get("rxloop/state"), [["text", result_text(result)]], 0, errors)

    async def send(self, url: str, message: str) -> ClientView:
        self._prompt = message
        return await self._call(url, "clerk", prompt=message)

    async def reconnect(self, url: str) -> ClientView:
        return await self.send(url, self._prompt)

    async def answer(self, url: str, approved: bool) -> ClientView:
        answers = {each["inputId"]: approved for each in self._questions}
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
    node_process = Node(process)
    reading = asyncio.create_task(node_process.read())
    try:
        yield node_process
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
    """Fold a run's log into the reasoning, texts and calls of its complete steps."""
    items: list[Any] = []
    texts: dict[str, str] = {}
    thoughts: dict[str, str] = {}
    calls: dict[str, list[Any]] = {}

    def take(item: changes.Change | Any) -> None:
        match item:
            case changes.TextDelta(_, id, delta):
                texts[id] = texts.get(id, "") + delta
            case changes.ReasoningDelta(_, id, delta):
                thoughts[id] = thoughts.get(id, "") + delta
            case changes.CallEnded(event, id, call):
                calls[id] = ["call", call.name, call.arguments, None]
            case changes.CallResult(event, id):
                calls[id][3] = event.content
            case changes.StepEnded(_, id, "complete"):
                items.extend(["reasoning", thoughts[each]] for each in thoughts if each.startswith(f"{id}:reasoning"))
                items.extend([["text", texts[id]]] if id in texts else [])
                items.extend(calls[each] for each in calls if each.startswith(f"{id}:"))
            case _:
                pass

    fold = ChatFold(take)
    for event in await log.read(task_id):
        if (public := event.to_public()) is not None:
            fold.take(public)
    return items


async def find_mismatches(kind: str, view: ClientView, log: EventLog, task_id: str) -> list[str]:
    """List the differences between a client's view and the log of a finished run."""
    state, items = (await log.get_record(task_id)).state, await fold_log(log, task_id)
    if kind.startswith(("A2A", "MCP")):
        # These protocols only send the answer.
        items = items[-1:]
    mismatches = [f"{kind}: {each}" for each in view.errors]
    if view.state != state:
        mismatches.append(f"{kind}: expected state {state}, got {view.state}")
    if state == "completed" and view.items != items:
        mismatches.append(f"{kind}: expected {items}, got {view.items}")
    return mismatches
