"""Agents and servers that run in processes of their own."""
