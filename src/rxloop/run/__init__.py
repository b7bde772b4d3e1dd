"""One attempt of a run, from its start or resume to its end: handle, ownership, life cycle, result, fork."""
