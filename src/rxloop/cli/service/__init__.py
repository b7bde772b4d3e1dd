"""The parts of the server that `rxloop serve` starts."""
