"""MCP servers: sequential thinking for the clients of others; tools of other servers are in `tools/mcp/`."""
