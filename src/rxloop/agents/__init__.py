"""Agents: immutable descriptions from which runs are made, and their options, batches and tools."""
