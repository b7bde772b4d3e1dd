"""Interactive terminal chats with slash commands, steering and streamed Markdown."""
