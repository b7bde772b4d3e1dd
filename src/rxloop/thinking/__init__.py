"""Thoughts: the graph of a run, thinking sessions, and strategies."""
