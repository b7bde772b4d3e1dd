"""The graph of thoughts, and its drawings."""
