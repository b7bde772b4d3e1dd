"""Result of the thinking phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rxloop.protocol.messages import Message, Usage

_NOTE = "[Where you are, for you alone; the conversation above is what counts.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingResult:
    """Result of the thinking phase before a model call, in `ModelRequest.thinking`.

    A function passed as `op.thinking_phase(think=...)` returns it. Operators after the phase can read it::

        @op.on(ModelRequest)
        async def show(request, ctx):
            if request.thinking is not None:
                ctx.emit(CustomEvent(name="thinking", data={"note": request.thinking.note()}))
            yield request
    """

    summary: str = ""
    """Summary replacing omitted messages. If no messages are omitted by this cycle, it is a part of the note."""
    current_state: str = ""
    """Current progress in one or two sentences."""
    insights: tuple[str, ...] = ()
    """Findings recorded in thoughts, and facts in the summary of a thinking model."""
    next_actions: tuple[str, ...] = ()
    """Next steps in the summary of a thinking model, the latest plan, and failed calls."""
    compressed_history: Sequence[Message] = field(default=(), repr=False)
    """Messages to send instead of the history. Unchanged messages must be the same objects."""
    thinking_tokens: Usage = field(default_factory=Usage)
    """Tokens used by the thinking model."""
    thinking_model: str | None = None
    """Name of this model, used to find its price."""

    def text(self) -> str:
        """Return the note without its heading."""
        lines = [self.current_state] if self.current_state else []
        lines += [f"You found: {insight}" for insight in self.insights]
        lines += [f"To do: {action}" for action in self.next_actions]
        return "\n".join(lines)

    def note(self) -> str:
        """Return a short note for the model, or an empty string."""
        text = self.text()
        return f"{_NOTE}\n{text}" if text else ""
