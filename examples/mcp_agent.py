"""Agent as a tool for MCP clients such as Claude Desktop, including a client. No API key is required.

Requires `pip install "rxloop[mcp]"`. The command `rxloop mcp examples/mcp_agent.py:planner` serves the agent over stdin
and stdout. To configure Claude Desktop, add

    {"mcpServers": {"travel": {"command": "rxloop", "args": ["mcp", "/full/path/of/mcp_agent.py:planner"]}}}

As a script, this file starts this command, and answers the agent's question.
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
    """Current weather in a city. Costs one cent per call."""
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


def planner() -> Agent[Any, Any]:
    """Create the agent. The command calls this function."""
    return Agent(demo_model(), name="planner", tools=[get_weather], instructions="You plan journeys.")


async def answer_question(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Answer a question. A real client would show a form to the user."""
    print(f"question    {params.message} yes")
    return types.ElicitResult(action="accept", content={"answer": True})


async def print_progress(progress: float, total: float | None, message: str | None) -> None:
    """Print progress notifications."""
    print(f"progress {progress:g}  {message}")


async def main() -> None:
    """Connect to the server, run the agent, and continue the conversation."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", f"{__file__}:planner", "--no-log"], env=dict(os.environ)
    )
    async with Client(server, elicitation_callback=answer_question) as client:
        for listed in (await client.list_tools()).tools:
            print(f"tool        {listed.name}")
        question = {"prompt": "Is it warm in Oslo?"}
        result = await client.call_tool("planner", question, progress_callback=print_progress)
        print(f"answer      {getattr(result.content[0], 'text', '')}")
        follow_up = {"prompt": "What is 17 * 23?", "context_id": (result.meta or {})["rxloop/contextId"]}
        result = await client.call_tool("planner", follow_up)
        print(f"answer      {getattr(result.content[0], 'text', '')}")


if __name__ == "__main__":
    asyncio.run(main())
