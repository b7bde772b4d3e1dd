"""Which process owns a run: locks, commands sent to it, answers to its questions, the order of a conversation."""
