"""One attempt of a run, from start to end: handle, result, fork; what is asked of runs by id (settle, say); batches."""
