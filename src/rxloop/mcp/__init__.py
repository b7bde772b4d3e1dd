"""MCP: the server of sequential thinking."""
