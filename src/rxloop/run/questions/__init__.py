"""Questions of an attempt to the person or client behind the run, and their answers."""
