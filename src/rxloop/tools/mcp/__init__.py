"""Tools of MCP servers, as families of tools: `mcp(...)` for one server, `mcp_config(...)` for a file of them."""

from rxloop.tools.mcp.config import mcp_config
from rxloop.tools.mcp.server import MCPServer, mcp

__all__ = ["MCPServer", "mcp", "mcp_config"]
