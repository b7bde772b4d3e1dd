"""Everything that is a fold of events."""
