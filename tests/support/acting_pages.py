"""Servers with agents and a viewer page, and the state of their runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.protocol.events import State
from rxloop.server import api, viewer
from support.api_server import serve_app


class ActingServer:
    """Running server with a viewer page."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url, self.runtime = url, runtime

    def find_run(self, task_id: str, place: str = "") -> str:
        """Return the URL of the page of a run."""
        return f"{self.url}/view/#/r/{task_id}{place}"

    async def wait(self, task_id: str) -> State:
        """Follow a run until it waits or is over, and return its state."""
        await self.runtime.follow(task_id, until="attempt")
        return (await self.runtime.get_record(task_id)).state

    async def ask(self, prompt: str) -> str:
        """Start a run, wait until it waits or is over, and return its id."""
        record = await self.runtime.start(next(iter(self.runtime.agents)), prompt)
        await self.wait(record.task_id)
        return record.task_id


@contextlib.asynccontextmanager
async def serve_agents(
    *agents: Agent[Any, Any], log: EventLog | None = None, auth: Any = None, **options: Any
) -> AsyncGenerator[ActingServer]:
    """Serve agents with a viewer page.

    Args:
        agents: Agents, whose names are used by the runtime.
        log: Event log. By default, in memory.
        auth: Authentication of the API. The page cannot send cookies.
        options: Further options of the API.
    """
    runtime = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.5)
    adapter = api(runtime, auth=auth, **options)
    app = Starlette(routes=[Mount("/view", viewer(runtime, auth=auth)), Mount("/", adapter)])
    async with runtime, serve_app(app) as url:
        try:
            yield ActingServer(url, runtime)
        finally:
            # Pages that follow a run would delay the end of the server.
            await adapter.drain(0.2)
