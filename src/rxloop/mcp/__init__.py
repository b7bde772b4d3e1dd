"""rxloop as an MCP server: sequential thinking. The MCP client is `tools/mcp/`."""
