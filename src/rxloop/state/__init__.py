"""Everything that is a pure fold of events: run state, history, limits, the grammar of a stream."""
