"""MCP servers and runs that use their tools."""
