"""Worker processes and faults in them."""
