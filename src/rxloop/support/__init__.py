"""Helpers without knowledge of agents, runs or events: files, threads, waiting, text, JSON Schema, redaction."""
