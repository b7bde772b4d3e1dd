"""Runs once more, out of their logs: replay, follow, diff."""
