"""Operators of the loop."""
