"""Sums over the compressions of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from rxloop.protocol.events import ContextCompressedEvent
from rxloop.protocol.messages import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionTotals:
    """The sums over the compressions of a run."""

    count: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    dropped: int = 0
    """Messages that were left out."""
    shortened: int = 0
    """Tool results of which a part was left out."""
    stable_tokens: int = 0
    """Tokens at the front of the requests that stayed the same."""
    thinking: Usage = field(default_factory=Usage)
    """What the thinking model used; not part of the run's usage."""
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Tokens after, as a part of those before."""
        return self.tokens_after / self.tokens_before if self.tokens_before else 1.0

    def add(self, event: ContextCompressedEvent) -> CompressionTotals:
        """Add one compression."""
        return CompressionTotals(
            count=self.count + 1,
            tokens_before=self.tokens_before + event.tokens_before,
            tokens_after=self.tokens_after + event.tokens_after,
            dropped=self.dropped + event.dropped,
            shortened=self.shortened + event.shortened,
            stable_tokens=self.stable_tokens + event.stable_tokens,
            thinking=self.thinking + event.thinking,
            seconds=self.seconds + event.seconds,
        )
