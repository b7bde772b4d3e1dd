"""Sequential thinking as an MCP server, and transports. Agents as one: `server/mcp/`. The MCP client: `tools/mcp/`."""
