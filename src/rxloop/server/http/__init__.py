"""The HTTP API: runs, their events, and what can be asked of them."""
