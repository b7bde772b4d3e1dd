"""Official clients of the server's protocols."""
