"""Processes, machines and the services that tests need."""
