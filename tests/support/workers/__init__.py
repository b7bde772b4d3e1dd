"""Worker processes, and faults inside them."""
