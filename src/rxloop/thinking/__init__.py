"""Sequential thinking in sessions, and stage flows."""
