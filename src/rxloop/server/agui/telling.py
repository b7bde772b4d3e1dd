"""What a client is told of a run, and from where on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rxloop.server.agui.messages import Messages


@dataclass(frozen=True, slots=True)
class Telling:
    """What a client is told of a run, and from where on.

    Attributes:
        thread_id: The conversation.
        run_id: What the client calls this attempt.
        messages: Makes what the client has had before.
        after: The client has the durable events up to this one, or gets what they come to by a snapshot.
        restated: Whether it gets them by a snapshot.
        reasoning: The ids of the reasoning that it has.
        state: The name of the custom event that has the state of the application.
    """

    thread_id: str
    run_id: str
    messages: Callable[[], Messages] = Messages
    after: int = 0
    restated: bool = False
    activities: bool = False
    """Whether the snapshot has all activities of the conversation, too."""
    reasoning: frozenset[str] = field(default_factory=frozenset[str])
    state: str | None = None
