"""What models cost, as their vendors' price lists had it in November 2026, in US dollars per million tokens.

A small table to begin with: pass your own where money depends on it. Models whose price goes by the length of the
request or by the hour are left out, and so are models at gateways, which set prices of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rxloop.protocol.messages import Usage

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of a model cost, in US dollars."""

    input: float
    output: float
    """Reasoning included."""
    cached: float | None = None
    """Of the input that came from the vendor's cache; None costs as much as the rest."""

    def of(self, usage: Usage) -> float:
        """What these tokens cost."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        fresh = usage.input_tokens - cached
        cached_price = self.input if self.cached is None else self.cached
        return (fresh * self.input + cached * cached_price + usage.output_tokens * self.output) / MILLION


PRICES: Mapping[str, Price] = MappingProxyType(
    {
        "openai:gpt-5": Price(1.25, 10.0, cached=0.125),
        "openai:gpt-5-mini": Price(0.25, 2.0, cached=0.025),
        "openai:gpt-5.1": Price(1.25, 10.0, cached=0.125),
        "openai:gpt-5.2": Price(1.75, 14.0, cached=0.175),
        "openai:gpt-4.1": Price(2.0, 8.0, cached=0.5),
        "openai:gpt-4o": Price(2.5, 10.0, cached=1.25),
        "openai:gpt-4o-mini": Price(0.15, 0.6, cached=0.075),
        "zai:glm-4.7": Price(0.6, 2.2, cached=0.11),
        "zai:glm-5.2": Price(1.4, 4.4, cached=0.26),
        "zai:glm-5.3": Price(1.4, 4.4, cached=0.26),
    }
)
"""The prices by model string."""
