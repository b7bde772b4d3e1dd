"""What travels in the loop, and the seams that it meets: requests, Provider, Tool, EventLog."""
