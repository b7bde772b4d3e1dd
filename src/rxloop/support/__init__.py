"""Helpers that are independent of agents, runs and events: files, threads, tasks, text, JSON Schema, redaction."""
