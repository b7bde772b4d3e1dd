"""Pages that connect to `ui_stream` with the official AI SDK packages in a Node process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import subprocess
import threading
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path
from typing import Any

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.server import UiStream, bearer, ui_stream
from support.api_server import TOKENS, serve_app
from support.processes.services import CLIENTS, NODE

PROGRAM = Path(__file__).parents[2] / "server/ui_messages/page.mjs"


class Pages:
    """Node process with pages. `await pages.do("send", "one", message={"text": "Hi"})` runs a command of page.mjs."""

    def __init__(self) -> None:
        assert NODE is not None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([NODE, PROGRAM, CLIENTS], stdin=pipe, stdout=pipe)
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._number = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        atexit.register(self.close)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            loop, waiting = self._waiting.pop(said["number"])
            with contextlib.suppress(RuntimeError):  # the test is over
                loop.call_soon_threadsafe(_give, waiting, said)

    async def do(self, command: str, name: str = "", **rest: Any) -> Any:
        """Execute a command and return its result."""
        self._number += 1
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        self._waiting[self._number] = loop, waiting
        assert self._process.stdin is not None
        line = json.dumps({"number": self._number, "command": command, "name": name, **rest})
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        said = await asyncio.wait_for(waiting, 60)
        if "error" in said:
            raise AssertionError(said["error"])
        return said["result"]

    def close(self) -> None:
        """Kill the Node process."""
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _give(waiting: asyncio.Future[Any], said: Any) -> None:
    if not waiting.done():
        waiting.set_result(said)


@cache
def node() -> Pages:
    """Return a shared Node process, because loading the packages is slow."""
    return Pages()


class Site:
    """Endpoint of a `ui_stream` server, with browser pages."""

    def __init__(self, url: str, app: UiStream, runtime: Runtime, pages: Pages | None) -> None:
        self.url, self.app, self.runtime = url, app, runtime
        self._pages = pages
        self.api = f"{url}/api/chat"

    @property
    def pages(self) -> Pages:
        assert self._pages is not None
        return self._pages

    async def page(self, name: str = "page", *, chat: str = "chat-1", token: str = "ann-key", **options: Any) -> Page:
        """Open a page."""
        await self.pages.do("open", name, api=self.api, id=chat, token=token, **options)
        return Page(self.pages, name)


class Page:
    """Browser page. Each command returns the displayed messages."""

    def __init__(self, pages: Pages, name: str) -> None:
        self._pages, self._name = pages, name

    async def send(self, text: str | None = None, *, wait: bool = True, **options: Any) -> Any:
        message = None if text is None else {"text": text}
        return await self._pages.do("send", self._name, message=message, options=options, wait=wait)

    async def do(self, command: str, **rest: Any) -> Any:
        return await self._pages.do(command, self._name, **rest)


@contextlib.asynccontextmanager
async def serve_pages(
    *agents: Agent[Any, Any],
    log: EventLog | None = None,
    runtime: dict[str, Any] | None = None,
    with_node: bool = True,
    **options: Any,
) -> AsyncGenerator[Site]:
    """Serve agents to pages, authenticated by `TOKENS`."""
    options = {"auth": bearer(TOKENS), **options}
    host = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5, **(runtime or {}))
    async with host, contextlib.AsyncExitStack() as stack:
        app = ui_stream(host, **options)
        pages = node() if with_node else None
        url = await stack.enter_async_context(serve_app(app))
        yield Site(url, app, host, pages)
        await app.drain(0.2)
    for agent in agents:
        await agent.aclose()


def select_parts(screen: Any, *types: str) -> list[dict[str, Any]]:
    """Return the parts of the last message, optionally filtered by type."""
    parts = screen["messages"][-1]["parts"]
    return [part for part in parts if not types or part["type"] in types]


def join_text(screen: Any) -> str:
    """Return the last message's text."""
    return "".join(part["text"] for part in select_parts(screen, "text"))
