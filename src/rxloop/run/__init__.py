"""One attempt, from its start to its one end: handle, ownership, life cycle, result, fork."""
