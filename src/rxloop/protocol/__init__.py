"""What is on the stream: messages, events, their envelope, and their JSON."""
