"""Operators that work in the loop."""
