"""When a compressor acts, and how far it goes."""

from __future__ import annotations

from rxloop.errors import ConfigurationError


class Marks:
    """The limit of a compressor and its two marks.

    Args:
        max_tokens: What a whole request may take: system prompt, tools, messages and workspace.
        high: The part of it at which the history is cut.
        low: The part of it that the request has after a cut. The farther below `high`, the longer the provider's cache
            holds until the next cut, and the less of the history is there word for word.
    """

    max_messages: int | None = None
    """How many messages of the history a request may have."""

    def __init__(self, max_tokens: int, *, high: float = 1.0, low: float = 0.6) -> None:
        if max_tokens < 0:
            raise ConfigurationError(f"max_tokens is {max_tokens}: give the tokens that a whole request may take")
        if not 0 < low <= high <= 1:
            raise ConfigurationError(
                f"low is {low} and high is {high}: they are parts of max_tokens, 0 < low <= high <= 1"
            )
        self.max_tokens = max_tokens
        self.high = high
        self.low = low

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_tokens={self.max_tokens}, high={self.high}, low={self.low})"
