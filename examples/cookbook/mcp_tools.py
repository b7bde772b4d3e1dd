"""Use the tools of an MCP server.

Use MCP servers to access files, databases and other services. rxloop starts local servers on demand.
Requires `pip install "rxloop[mcp]"`.
"""

import asyncio
import sys
from pathlib import Path

from rxloop import Agent
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp

Path("shop.py").write_text('''
from mcp.server.mcpserver import MCPServer

shop = MCPServer("shop")

@shop.tool()
def get_price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 3 euros"

shop.run()
''')


async def main() -> None:
    # or mcp("npx", "-y", "@modelcontextprotocol/server-everything"), mcp("https://host.example/mcp", auth="a token")
    shop = mcp(sys.executable, "shop.py", name="shop", only=["get_price"], timeout=10)
    model = ScriptedModel(call("shop__get_price", item="Tea"), "Tea costs 3 euros.")
    async with Agent(model, tools=[shop]) as agent:  # or Agent("openai:gpt-5", ...)
        result = await agent.run("What does tea cost?")
    print("offered:", [tool.name for tool in model.requests[0].tools])
    for message in result.messages:
        if message.role == "tool":
            print("result:", message.text)
    print(result.output)


asyncio.run(main())

# Output:
# offered: ['shop__get_price', 'think_aloud']
# result: Tea: 3 euros
# Tea costs 3 euros.
