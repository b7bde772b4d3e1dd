"""Gemini's API: a request as JSON for `generateContent`, and its answers as events."""
