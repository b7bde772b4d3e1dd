"""Runs with tools of MCP servers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rxloop import Agent, Limits
from rxloop.protocol.events import Event, ToolCompleteEvent
from rxloop.testing import ScriptedModel
from rxloop.tools.mcp import MCPServer, mcp

SHOP = str(Path(__file__).with_name("shop.py"))


def shop(effects: Path | None = None, **options: Any) -> MCPServer:
    """Return the shop as a stdio server."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)} | ({"SHOP_EFFECTS": str(effects)} if effects else {})
    return mcp(sys.executable, SHOP, env={**env, **options.pop("env", {})}, **options)


async def collect_events(calls: Sequence[Any], *tools: Any, on_input: Any = None, **options: Any) -> Sequence[Event]:
    """Run an agent with parallel tool calls, returning its events."""
    async with Agent(ScriptedModel(list(calls), "done"), tools=tools, thoughts=False, **options) as agent:
        run = agent.run("Go.", limits=Limits(tool_failures=None), on_input=on_input)
        events = [event async for event in run.events]
        await run
    return events


def results(events: Sequence[Event]) -> list[ToolCompleteEvent]:
    """Return the tool results in call order."""
    found = [event for event in events if isinstance(event, ToolCompleteEvent)]
    return sorted(found, key=lambda event: (event.step or "", event.index))


async def wait_until(there: Callable[[], bool]) -> None:
    """Poll a condition that depends on another process."""
    async with asyncio.timeout(20):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def child_processes() -> set[int]:
    """Return the process ids of all child processes."""
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


def count_open_files() -> int:
    """Return the number of open file descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))
