"""What went wrong at an endpoint or on the way to it, as one of our errors, and how long to wait."""
