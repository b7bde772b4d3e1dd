"""Interfaces of compressors, token counters and workspaces."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class WorkspacePart:
    """A piece of a workspace."""

    text: str
    title: str = ""
    """A line above it, such as the name of a file."""
    kind: Literal["static", "live"] = "live"
    """`static` parts stand after the system prompt, where the provider's cache keeps them; `live` ones at the end."""


Rendered = str | Sequence[WorkspacePart]


class TokenCounter(Protocol):
    """Counts the tokens of messages, and of the tools that are offered with them."""

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Count the tokens, exactly or by estimate; what a list of messages takes is the sum of what each takes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a compressor is to keep to."""

    tokens: int
    """What the messages may take: the request's limit less what goes with them (system prompt, tools, workspace)."""
    target: int
    """What they are to be cut to, so that it is a while until the next cut."""
    counter: TokenCounter
    pinned: frozenset[int] = frozenset()
    """The places of messages that must stay, beside the first user message."""
    sent: Sequence[Message] = ()
    """What goes out if nothing is cut: the history as the last cut left it, and what came since."""
    dropped: Sequence[Message] = ()
    """What another compressor before this one left out: a summary is to cover it too."""
    messages: int | None = None
    """How many messages there are to be after the cut, for a window that counts them."""

    def count(self, *messages: Message) -> int:
        """Count the tokens of these messages."""
        return self.counter.count(messages)


class Compressor(Protocol):
    """Makes a history smaller when it does not fit any more.

    It is asked only then. What it returns is checked and repaired, and later messages are appended until it overflows
    again; so a compressor keeps no state of a run and may serve many side by side.
    """

    @property
    def max_tokens(self) -> int:
        """What a whole request may take."""
        ...

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the messages to send instead, in order; those that stay are the same objects.

        Args:
            messages: The whole history, oldest first, with nothing left out by earlier cuts.
            budget: What to keep to.
        """
        ...


class Workspace(Protocol):
    """What a model has before its eyes in each request; it never enters the history."""

    def render(self) -> Rendered | Awaitable[Rendered]:
        """Show what there is now, a text or parts. Called before each model call; if not async, in a thread."""
        ...
