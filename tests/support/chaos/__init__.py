"""Logs, agents and a second checker for tests of the chaos kit."""
