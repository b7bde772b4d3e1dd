"""Requests that a run has sent to models, and the references with which they are recorded."""
