"""The one subject of a run, its readers, and its tasks."""
