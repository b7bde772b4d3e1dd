"""One attempt of a run, from its start to its one end: recording, resume, fork, result; nested runs."""
