"""Everything that is a fold of events: run state, history, conversations, limits."""
