"""The recent blocks, and a summary of what left the window."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rxloop.context._layout import Layout
from rxloop.context._marks import Marks
from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Budget
from rxloop.protocol.messages import Message


class SlidingWindowCompressor(Marks):
    """Keeps the newest blocks that fit, and the facts of the others as a summary after the task.

    The window is as large as both its limits say: by tokens, by messages, or by one of them. It is cut to `low` of the
    limit, and grows until the limit is reached again.

    Example:
        ```python
        Agent(model, loop=[op.compress(SlidingWindowCompressor(max_tokens=60_000)), op.call_model(), op.run_tools()])
        ```

    Args:
        max_tokens: What a whole request may take; None where messages alone count.
        max_messages: How many messages of the history a request may have, the task and the summary among them. A block
            is never torn for it, and the newest one always stays.
        high: The part of `max_tokens` at which the history is cut.
        low: The part of both limits that the request has after a cut.

    Raises:
        ConfigurationError: There is no limit, or it is not a number that can be one.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        *,
        max_messages: int | None = None,
        high: float = 1.0,
        low: float = 0.6,
    ) -> None:
        if max_tokens is None and max_messages is None:
            raise ConfigurationError("a window needs a limit: give max_tokens, max_messages, or both")
        if max_messages is not None and max_messages < 0:
            raise ConfigurationError(f"max_messages is {max_messages}: give the messages that a request may have")
        super().__init__(sys.maxsize if max_tokens is None else max_tokens, high=high, low=low)
        self.max_messages = max_messages

    def __repr__(self) -> str:
        if self.max_messages is None:
            return super().__repr__()
        tokens = "" if self.max_tokens == sys.maxsize else f"max_tokens={self.max_tokens}, "
        return f"{type(self).__name__}({tokens}max_messages={self.max_messages}, high={self.high}, low={self.low})"

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Choose the messages to send instead of the history."""
        layout = Layout(messages, budget)
        layout.keep_newest({})
        return layout.messages()
