"""Official clients before several servers: those of npm in one node process, and that of MCP; and who judges them."""

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
from support.clients.mcp import LEGACY, MODERN, text
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
"""The clients of npm."""
MCP = {"MCP 2026-07-28": MODERN, "MCP 2025-11-25": LEGACY}
_STATES = {
    "success": "completed",
    "interrupt": "input-required",
    "cancelled": "canceled",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_INPUT_REQUIRED": "input-required",
}
"""Of the protocols, by their words."""


class Shown(NamedTuple):
    """What a client shows: texts and calls in their order, where it speaks of these."""

    state: str | None
    told: list[Any]
    pieces: int
    """In how many pieces it came."""
    errors: list[str]


class NeverHeard(Exception):
    """The connection broke before the client was told the name of what it has begun, without which it cannot ask."""


class Official(Protocol):
    """A client that has a conversation."""

    async def say(self, url: str, said: str) -> Shown:
        """Say something, and read what comes of it."""
        ...

    async def back(self, url: str) -> Shown:
        """Come back after the connection broke."""
        ...

    async def answer(self, url: str, approved: bool) -> Shown:
        """Answer what waits."""
        ...

    async def task_id(self) -> str:
        """The run, once there is one."""
        ...


class Node:
    """The node process."""

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
            raise NeverHeard if "never heard" in said["error"] else ConnectionError(said["error"])
        return said["result"]


class OfNpm:
    """A client of the node process."""

    def __init__(self, node: Node, name: str, log: EventLog) -> None:
        self._node, self._name, self._log = node, name, log

    async def open(self, kind: str) -> OfNpm:
        which, options = KINDS[kind]
        await self._node.do(client=self._name, verb="open", kind=which, context=self._name, **options)
        return self

    async def _do(self, verb: str, url: str = "", **more: Any) -> Shown:
        shown = Shown(**await self._node.do(client=self._name, verb=verb, url=url, **more))
        return shown._replace(state=_STATES.get(shown.state or "", shown.state))

    async def say(self, url: str, said: str) -> Shown:
        return await self._do("say", url, said=said)

    async def back(self, url: str) -> Shown:
        if not await self._log.list_runs(context_id=self._name, limit=1):
            raise NeverHeard
        return await self._do("back", url)

    async def answer(self, url: str, approved: bool) -> Shown:
        return await self._do("answer", url, said=approved)

    async def cancel(self, url: str) -> Shown:
        return await self._do("cancel", url)

    async def shown(self) -> Shown:
        return await self._do("shown")

    async def task_id(self) -> str:
        while not (found := await self._log.list_runs(context_id=self._name, newest_first=True, limit=1)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found[0].task_id


class OfMcp:
    """The client of MCP; a call that has lost its connection is made again under its key."""

    def __init__(self, name: str, mode: str) -> None:
        self._key, self._mode = name, mode
        self._task: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._said = ""
        self._waits: list[dict[str, Any]] = []

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        found = re.search(r"\(run (\S+)\)", message or "")
        if found and not self._task.done():
            self._task.set_result(found[1])

    async def _call(self, url: str, tool: str, **arguments: Any) -> Shown:
        transport = streamable_http_client(f"{url}/mcp", http_client=(http := httpx2.AsyncClient(timeout=60)))
        meta: Any = {"rxloop/key": self._key}
        async with http, McpClient(transport, mode=self._mode) as client:
            done = await client.call_tool(tool, arguments, progress_callback=self._progress, meta=meta)
        about = done.meta or {}
        self._waits = (done.structured_content or {}).get("questions", [])
        errors = [text(done)] if done.is_error and about.get("rxloop/state") != "canceled" else []
        return Shown(about.get("rxloop/state"), [["text", text(done)]], 0, errors)

    async def say(self, url: str, said: str) -> Shown:
        self._said = said
        return await self._call(url, "clerk", prompt=said)

    async def back(self, url: str) -> Shown:
        return await self.say(url, self._said)

    async def answer(self, url: str, approved: bool) -> Shown:
        answers = {each["inputId"]: approved for each in self._waits}
        return await self._call(url, "continue_run", task_id=await self._task, answers=answers)

    async def task_id(self) -> str:
        return await asyncio.shield(self._task)


@contextlib.asynccontextmanager
async def node() -> AsyncGenerator[Node]:
    """The node process, with all packages loaded."""
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


async def opened(node: Node, kind: str, log: EventLog) -> Official:
    """A client of that kind, in a conversation of its own."""
    name = f"client-{next(_names)}"
    return OfMcp(name, MCP[kind]) if kind in MCP else await OfNpm(node, name, log).open(kind)


async def folded(log: EventLog, task_id: str) -> list[Any]:
    """What a run has told, by the fold of its log: the reasoning, texts and calls of the steps that are complete."""
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


async def judge(kind: str, shown: Shown, log: EventLog, task_id: str) -> list[str]:
    """What is wrong with what a client shows of a run that is over; nothing if all is well."""
    state, told = (await log.get_record(task_id)).state, await folded(log, task_id)
    if kind.startswith(("A2A", "MCP")):
        # They speak of the answer alone.
        told = told[-1:]
    wrong = [f"{kind}: {each}" for each in shown.errors]
    if shown.state != state:
        wrong.append(f"{kind}: it is {shown.state} and not {state}")
    if state == "completed" and shown.told != told:
        wrong.append(f"{kind}: {shown.told} and not {told}")
    return wrong
