"""Requests, RunContext, seams: Provider, Tool, ToolProvider, EventLog, Queue, SessionStore, Compressor, Workspace."""
