"""Worker processes with injected faults."""
