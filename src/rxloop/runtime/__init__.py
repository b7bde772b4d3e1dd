"""Many runs by id: starting, following, taking up again; experiments (`experiments/`)."""
