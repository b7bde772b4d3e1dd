"""Data structures of thoughts: the graph of a run, sequential sessions, and stage flows."""
