"""Parts of the event log and of the artifact store in SQLite."""
