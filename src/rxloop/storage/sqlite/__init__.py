"""Internals of the SQLite event log and artifact store."""
