"""What is known of vendors: their endpoints, their addresses and the names of their models."""
