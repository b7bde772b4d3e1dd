"""The flow engine: stage tables, and the stage manager that moves through them."""
