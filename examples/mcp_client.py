"""An agent that uses the tools of an MCP server, with a question of the server in the middle. Needs no key.

Needs the extra: `pip install "rxloop[mcp]"`. The server stands at the end of this file, and runs as a program of its
own; any other would do: `mcp("npx", "-y", "@modelcontextprotocol/server-everything")`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

try:
    from mcp.server.mcpserver import Elicit, MCPServer, Resolve
except ImportError as error:
    sys.exit(f'This example needs the extra mcp ({error}): pip install "rxloop[mcp]"')

from pydantic import BaseModel

from rxloop import Agent
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp


async def main() -> None:
    """Ask for a table; the server asks for the day, and the run waits for the answer."""
    log = MemoryEventLog()
    server = mcp(sys.executable, __file__, "serve", name="restaurant")
    model = ScriptedModel(call("restaurant__reserve", guests=4), "A table for four is reserved.")
    async with Agent(model, tools=[server], log=log) as agent:
        first = await agent.run("A table for four, please.")
        print(f"offered     {', '.join(tool.name for tool in model.requests[0].tools)}")
        [question] = first.pending
        print(f"state       {first.state}: {question.prompt}")
        # An hour later, and perhaps in another process:
        result = await agent.resume(first.task_id, inputs={question.input_id: {"day": "Friday"}})
        print(f"result      {result.messages[-2].text}")
        print(f"answer      {result.output}")


class Day(BaseModel):
    """What the server asks for."""

    day: str


def which_day() -> Elicit[Day]:
    """Ask for the day."""
    return Elicit("Which day?", Day)


def serve() -> None:
    """Run the server, over stdin and stdout."""
    restaurant: MCPServer[Any] = MCPServer("restaurant")

    @restaurant.tool()
    def reserve(guests: int, day: Annotated[Day, Resolve(which_day)]) -> str:  # pyright: ignore[reportUnusedFunction]
        """Reserves a table."""
        return f"{guests} guests on {day.day}"

    restaurant.run()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
