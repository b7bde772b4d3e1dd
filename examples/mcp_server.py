"""MCP server for sequential thinking, including a client. No API key is required.

Requires `pip install "rxloop[mcp]"`. The server logs to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

try:
    from mcp import Client, StdioServerParameters
except ImportError as error:
    sys.exit(f'This example needs the extra mcp ({error}): pip install "rxloop[mcp]"')

SERVER = StdioServerParameters(
    command=sys.executable, args=["-m", "rxloop", "mcp", "sequential-thinking"], env=dict(os.environ)
)


async def think(client: Client, number: int, text: str, **fields: Any) -> None:
    """Send a thought and print the response."""
    thought = {"thought": text, "thoughtNumber": number, "totalThoughts": 3, "nextThoughtNeeded": number < 3, **fields}
    result = await client.call_tool("sequentialthinking", thought)
    answer: dict[str, Any] = result.structured_content or {}
    print(f"thought {number}   {answer['thoughtHistoryLength']} so far, branches {answer['branches']}")
    for warning in answer.get("warnings", []):
        print(f"  warning   {warning['message']}")


async def main() -> None:
    """Start the server, send thoughts, and read the history and the graph."""
    async with Client(SERVER) as client:
        for tool in (await client.list_tools()).tools:
            print(f"tool        {tool.name}")

        # Connections use their own session by default.
        await think(client, 1, "The cache is cold after a deploy, so the first requests are slow.")
        await think(
            client, 2, "Thought 1 is wrong: the slow ones come an hour later.", isRevision=True, revisesThought=1
        )
        await think(client, 2, "Or does the database sleep?", branchFromThought=1, branchId="database")
        await think(client, 3, "The keys all end after an hour. Spread their lifetimes.")

        history: dict[str, Any] = (await client.call_tool("thinking_history", {})).structured_content or {}
        print(f"\nhistory     {history['thoughtHistoryLength']} thoughts, {history['status']}")
        for thought in history["thoughts"]:
            revises = f" revises {thought['revisesThought']}" if thought["isRevision"] else ""
            branch = f" on {thought['branchId']}" if thought["branchId"] else ""
            print(f"  {thought['thoughtNumber']}/{thought['totalThoughts']}{revises}{branch}: {thought['thought']}")

        [graph] = (await client.read_resource("thinking://session/graph")).contents
        print(f"\n{getattr(graph, 'text', '')}")


if __name__ == "__main__":
    asyncio.run(main())
