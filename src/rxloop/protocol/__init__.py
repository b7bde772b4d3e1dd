"""What is on the stream: messages, events (`run_events.py`, `step_events.py`), their envelope, and their JSON."""
