"""What travels in the loop, and the seams: requests, RunContext, Provider, Tool, EventLog, Compressor, Workspace."""
