"""What is remembered of events: by the followers of a run, and by the workers that acknowledge a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from rxloop.protocol.events import Event

Seen = tuple[int, int, str, int]
"""Of an event: `seq`, attempt, kind, and a check sum of all of it."""


def seen(event: Event) -> Seen:
    """What is remembered of an event."""
    return event.seq, event.attempt, event.kind, crc32(event.to_json())


class Digest:
    """What an attempt has written, as one number for each of its events: what the part up to that one is."""

    def __init__(self) -> None:
        """Begin with an attempt, before its first event."""
        self._sums: dict[int, int] = {}
        self._last = 0

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._last = self._sums[event.seq] = crc32(event.to_json(), self._last)

    def at(self, seq: int) -> int | None:
        """The number for the part up to that event; None if the attempt has not written it."""
        return self._sums.get(seq)


def digest_of(events: Iterable[Event], attempt: int) -> Digest:
    """What an attempt has written, as a log has it."""
    digest = Digest()
    # As it is told from: an attempt begins with its status, after `task` in the first one.
    for event in events:
        if event.attempt == attempt and event.kind != "task" and event.parent_task_id is None:
            digest.add(event)
    return digest


@dataclass
class Witness:
    """What somebody outside was told of a run.

    Attributes:
        task_id: The run, whose start was acknowledged.
        context_id: Its conversation.
        prompt: What was asked.
        seen: The events that its follower saw.
        saw_its_end: The follower was told that there is nothing more.
        failed: Why the follower did not come to the end, if it failed.
        answered: The questions whose answers were acknowledged.
        refused: The questions whose answers were not taken, and why.
        cancelling: Somebody has asked to cancel it.
        cancelled_at: When that was acknowledged, in milliseconds since 1970.
    """

    task_id: str
    context_id: str
    prompt: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])
    saw_its_end: bool = False
    failed: str | None = None
    answered: list[str] = field(default_factory=list[str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    cancelling: bool = False
    cancelled_at: int | None = None
