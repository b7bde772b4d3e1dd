"""Programs that the crash tests start and kill."""
