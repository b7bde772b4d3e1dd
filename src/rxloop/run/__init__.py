"""One attempt of a run, from start to end: handle, result, fork; runs by id (settle, say); nested agents; batches."""
