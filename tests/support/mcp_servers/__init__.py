"""MCP servers, and runs with their tools."""
