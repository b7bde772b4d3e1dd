"""The chat that a run is for its readers: steps, texts, reasoning and calls, each begun once and ended once."""
