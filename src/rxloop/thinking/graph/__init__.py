"""Graph of the thoughts of a run, and its drawings."""
