"""What is on the stream: messages, events and their envelope, settings, and their JSON."""
