"""The one subject of a run, its readers, its tasks, and server-sent events."""
