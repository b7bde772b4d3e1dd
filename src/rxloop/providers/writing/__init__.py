"""What every wire does with a request: encoded messages that are kept, and the schema of a typed answer."""
