"""Requests, RunContext, and the seams: Provider, Tool, ToolProvider, EventLog, SessionStore, Compressor, Workspace."""
