"""OpenAI's chat completions: a request as JSON, and the chunks of an answer as events."""
