"""Test agents and servers that run in separate processes."""
