"""An agent as a tool of an MCP client, such as Claude Desktop, and a client that uses it. Needs no key.

Needs the extra: `pip install "rxloop[mcp]"`. `rxloop mcp examples/mcp_agent.py:planner` serves the agent over stdin and
stdout; the configuration of Claude Desktop for that is

    {"mcpServers": {"travel": {"command": "rxloop", "args": ["mcp", "/full/path/of/mcp_agent.py:planner"]}}}

As a script, this starts the command itself, and answers the agent's question in the place of the person.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from rxloop import Agent, tool
from rxloop.testing import demo_model

try:
    import mcp_types as types
    from mcp import Client, StdioServerParameters
except ImportError as error:
    sys.exit(f'This example needs the extra mcp ({error}): pip install "rxloop[mcp]"')


@tool(approve=True)
async def get_weather(city: str) -> dict[str, float | str]:
    """Current weather of a city; each look costs a cent."""
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


def planner() -> Agent[Any, Any]:
    """Make the agent; the command calls this."""
    return Agent(demo_model(), name="planner", tools=[get_weather], instructions="You plan journeys.")


async def person(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Answer a question, as the person before the client does by a form."""
    print(f"asked       {params.message} yes")
    return types.ElicitResult(action="accept", content={"answer": True})


async def told(progress: float, total: float | None, message: str | None) -> None:
    """Print what the client is told while the agent works."""
    print(f"progress {progress:g}  {message}")


async def main() -> None:
    """Start the server, call the agent, and go on with the conversation."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", f"{__file__}:planner", "--no-log"], env=dict(os.environ)
    )
    async with Client(server, elicitation_callback=person) as client:
        for each in (await client.list_tools()).tools:
            print(f"tool        {each.name}")
        question = {"prompt": "Is it warm in Oslo?"}
        result = await client.call_tool("planner", question, progress_callback=told)
        print(f"answer      {getattr(result.content[0], 'text', '')}")
        again = {"prompt": "What is 17 * 23?", "context_id": (result.meta or {})["rxloop/contextId"]}
        result = await client.call_tool("planner", again)
        print(f"answer      {getattr(result.content[0], 'text', '')}")


if __name__ == "__main__":
    asyncio.run(main())
