"""What travels in the loop, and the seams it meets."""
