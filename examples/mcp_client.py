"""This example connects an agent to an MCP server that can ask the user questions. No API key is required.

Requires `pip install "rxloop[mcp]"`. The server is defined at the end of this file, and runs in a separate process. To
use another server, pass its command, such as `mcp("npx", "-y", "@modelcontextprotocol/server-everything")`.
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
    """Reserve a table. The run pauses because the server asks for the day, and is resumed with the answer."""
    log = MemoryEventLog()
    server = mcp(sys.executable, __file__, "serve", name="restaurant")
    model = ScriptedModel(call("restaurant__reserve", guests=4), "A table for four is reserved.")
    async with Agent(model, tools=[server], log=log) as agent:
        first = await agent.run("A table for four, please.")
        print(f"offered     {', '.join(tool.name for tool in model.requests[0].tools)}")
        [question] = first.pending
        print(f"state       {first.state}: {question.prompt}")
        # Any process with access to the log can do this at a later time.
        result = await agent.resume(first.task_id, inputs={question.input_id: {"day": "Friday"}})
        print(f"result      {result.messages[-2].text}")
        print(f"answer      {result.output}")


class Day(BaseModel):
    """User input that the server requests."""

    day: str


def make_question() -> Elicit[Day]:
    """Create the question for the day."""
    return Elicit("Which day?", Day)


def serve() -> None:
    """Serve the tool over stdin and stdout."""
    restaurant: MCPServer[Any] = MCPServer("restaurant")

    @restaurant.tool()
    def reserve(guests: int, day: Annotated[Day, Resolve(make_question)]) -> str:  # pyright: ignore[reportUnusedFunction]
        """Reserves a table."""
        return f"{guests} guests on {day.day}"

    restaurant.run()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
