"""What the tokens of a model cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from rxloop.protocol.events import UsageEvent
from rxloop.protocol.messages import Usage

MILLION = 1_000_000
LONG_KEPT = "cache_write_long_tokens"
"""In the metadata of a `usage` event: how many of its `cache_write_tokens` are to be kept for long."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of a model cost, in US dollars."""

    input: float
    output: float
    """Reasoning included."""
    cached: float | None = None
    """Of the input that came from the vendor's cache; None costs as much as the rest."""
    cache_write: float | None = None
    """Of the input that was written into the vendor's cache; None costs as much as the rest."""
    cache_write_long: float | None = None
    """Of what was written to be kept for long: an hour at Anthropic, twelve at OpenAI; None costs as any writing."""
    above: tuple[int, Price] | None = None
    """A number of input tokens, and the price of a whole request that has more than that."""

    def of(self, usage: Usage, cache_write_long_tokens: int = 0) -> float:
        """What the tokens of one call cost.

        Args:
            usage: The tokens.
            cache_write_long_tokens: The part of `usage.cache_write_tokens` that is to be kept for long.
        """
        if self.above is not None and usage.input_tokens > self.above[0]:
            return self.above[1].of(usage, cache_write_long_tokens)
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        kept = min(cache_write_long_tokens, written)
        write = _or(self.cache_write, self.input)
        parts = (
            (usage.input_tokens - cached - written) * self.input,
            cached * _or(self.cached, self.input),
            (written - kept) * write,
            kept * _or(self.cache_write_long, write),
            usage.output_tokens * self.output,
        )
        return sum(parts) / MILLION

    def of_several(self, usage: Usage) -> float:
        """What the tokens of several calls cost, by the price of short ones: a sum does not say how long each was."""
        return replace(self, above=None).of(usage)

    def times(self, input: float, output: float) -> Self:
        """This price, so many times as high: all of the input, and the output."""

        def more(price: float | None) -> float | None:
            return None if price is None else price * input

        return replace(
            self,
            input=self.input * input,
            output=self.output * output,
            cached=more(self.cached),
            cache_write=more(self.cache_write),
            cache_write_long=more(self.cache_write_long),
        )


def long_kept(event: UsageEvent) -> int:
    """How many of the tokens that were written to the cache the vendor is to keep for long, as the event says."""
    kept = event.metadata.get(LONG_KEPT, 0)
    return kept if isinstance(kept, int) else 0


def _or(price: float | None, other: float) -> float:
    return other if price is None else price
