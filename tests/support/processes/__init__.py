"""Processes, simulated machines and external services."""
