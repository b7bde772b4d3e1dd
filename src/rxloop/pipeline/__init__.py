"""Requests, `RunContext`, and the interfaces that users implement, such as Provider, Tool, EventLog and Queue."""
