"""Many runs by id: turns, messages, cancelling, batches; what outlives a request."""
