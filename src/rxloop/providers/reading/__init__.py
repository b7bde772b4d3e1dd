"""What every wire does with an answer: text, thoughts, tool calls, and the message that they become."""
