"""CPU time that five MCP servers add to iterations that do not use them.

    python benchmarks/mcp_tools.py

The servers are separate programs with eleven tools each. Agents with and without them alternate, with runs of 100
iterations. The result is the minimum time, because other load on the machine can only increase it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from rxloop import Agent, Limits, tool
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp

ITERATIONS = 100
ROUNDS = 15
SERVERS = 5
TOOLS = 11


@tool
async def look() -> str:
    """Looks."""
    return "nothing"


async def microseconds(asked: Agent[Any, Any]) -> float:
    """Return the CPU time of an iteration."""
    model = ScriptedModel(*[call("look")] * ITERATIONS, "done")
    start = time.process_time()
    await asked.run("Go.", model=model)
    return (time.process_time() - start) / ITERATIONS * 1e6


async def main() -> None:
    servers = [mcp(sys.executable, __file__, "serve", name=f"server{number}") for number in range(SERVERS)]
    limits = Limits(iterations=ITERATIONS + 1)
    without: list[float] = []
    with_them: list[float] = []
    async with (
        Agent(ScriptedModel(), tools=[look], limits=limits) as plain,
        Agent(ScriptedModel(), tools=[look, *servers], limits=limits) as equipped,
    ):
        # Exclude the start of the servers.
        await microseconds(equipped)
        for _ in range(ROUNDS):
            without.append(await microseconds(plain))
            with_them.append(await microseconds(equipped))
    more = min(with_them) / min(without) - 1
    print(f"without        {min(without):6.0f} us an iteration, median {statistics.median(without):.0f}")
    print(f"five servers   {min(with_them):6.0f} us an iteration, median {statistics.median(with_them):.0f}")
    print(f"more           {more:6.1%} for {SERVERS * TOOLS} tools")


def serve() -> None:
    from mcp.server.mcpserver import MCPServer as Server

    server: Server[Any] = Server("bench")
    for number in range(TOOLS):

        def work(text: str) -> str:
            """Does something with a text, with a description of typical length."""
            return text

        server.add_tool(work, name=f"work_{number}")
    server.run()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
