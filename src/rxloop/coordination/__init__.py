"""Run ownership: leases, commands from other processes, answers, and the order of runs in a conversation."""
