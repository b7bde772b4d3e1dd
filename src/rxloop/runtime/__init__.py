"""Many runs by id: starting, following and taking them up again; experiments (`experiments/`)."""
