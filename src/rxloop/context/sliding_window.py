"""The recent blocks, and a summary of what left the window."""

from __future__ import annotations

from collections.abc import Sequence

from rxloop.context._layout import Layout
from rxloop.context._marks import Marks
from rxloop.messages import Message
from rxloop.records import Budget


class SlidingWindowCompressor(Marks):
    """Keeps the newest blocks that fit, and the facts of the others as a summary behind the task.

    Example:
        ```python
        Agent(model, loop=[op.compress(SlidingWindowCompressor(max_tokens=60_000)), op.call_model(), op.run_tools()])
        ```
    """

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """The messages to send instead of the history."""
        layout = Layout(messages, budget)
        layout.keep_newest({})
        return layout.messages()
