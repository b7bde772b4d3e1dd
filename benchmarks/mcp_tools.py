"""What five MCP servers add to an iteration whose tool is not theirs: processor time of this process.

    python benchmarks/mcp_tools.py

The servers are programs of their own, with eleven tools each. Agents with and without them take turns, each with a run
of a hundred iterations; what counts is the best time of each, since everything else on the machine only adds to it.
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
    """The processor time of one iteration."""
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
        # What is measured is a run, and not the start of a server.
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
            """Does something with a text, which is described in a sentence or two, as it mostly is."""
            return text

        server.add_tool(work, name=f"work_{number}")
    server.run()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
