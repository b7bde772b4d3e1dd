"""Agents and servers for other processes."""
