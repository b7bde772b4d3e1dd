"""Questions to the user or client of a run, and answers."""
