"""Runs once more, out of their logs."""
