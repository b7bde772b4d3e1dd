"""Single run attempts, including recording, resuming, forking, nesting and results."""
