"""What the log and the session store in SQLite are made of: `sqlite.py` and `sqlite_sessions.py` are their faces."""
