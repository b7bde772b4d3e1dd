"""Programs that are started and killed by the crash tests."""
