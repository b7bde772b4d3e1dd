"""Many runs by id: starting, following, taking up again; durable engines (planned); experiments (`experiments/`)."""
