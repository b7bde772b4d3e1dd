"""One attempt, from its start to its one end."""
