"""The protocol of OpenAI: the Responses API, a small Chat Completions API, and the list of models."""
