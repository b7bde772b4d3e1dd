"""The parts that all adapters share: who asks, which runs are theirs, and events on their way to a client."""
