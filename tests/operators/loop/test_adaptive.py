"""Trigger that weighs the price of a cache miss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxloop import Price, SlidingWindowCompressor, Usage, op
from rxloop.pipeline import Growth
from rxloop.testing import ScriptedModel, turn
from support.long_runs import collect_run, compressions, look_calls

PRICES = {"mine:m": Price(input=1.0, output=1.0, cached=0.1)}
SINCE = Growth(calls=10, messages=20, tokens=4_000, sent=10_000, target=6_000, limit=15_000, cached=1.0, model="mine:m")
"""The new messages have cost as much as 2,000 uncached tokens, and a cache miss costs as much as 5,400."""


@pytest.mark.parametrize(
    ("changes", "is_due"),
    [
        ({}, False),
        ({"calls": 26}, False),
        ({"calls": 28}, True),
        ({"calls": 28, "sent": 7_000}, False),
        ({"calls": 28, "model": "other:m"}, True),
        ({"cached": 0.5}, True),
        ({"cached": 0.0}, True),
        ({"tokens": 0}, False),
    ],
)
def test_compression_is_due_when_new_messages_have_cost_as_much_as_a_cache_miss(
    changes: dict[str, int], is_due: bool
) -> None:
    assert op.adaptive(PRICES)(replace(SINCE, **changes)) is is_due


def test_price_of_cache_writes_delays_compression() -> None:
    prices = {"mine:m": Price(input=1.0, output=1.0, cached=0.1, cache_write=1.25)}
    since = replace(SINCE, calls=30)
    assert op.adaptive(PRICES)(since)
    assert not op.adaptive(prices)(since)


def test_model_without_a_price_of_cached_tokens_has_no_cache_miss() -> None:
    assert op.adaptive({"mine:m": Price(input=1.0, output=1.0)})(SINCE)


async def count_compressions(cached: float) -> int:
    """Return the number of compressions if the provider reads a fraction of the input from its cache."""
    usages = [Usage(input_tokens=300 * call, cached_tokens=int(300 * call * cached)) for call in range(1, 41)]
    model = ScriptedModel(
        *(turn(calls=[look], usage=usage) for look, usage in zip(look_calls(40), usages, strict=True)),
        "Done.",
        name="mine:m",
    )
    compressor = SlidingWindowCompressor(12_000)
    events = await collect_run(model, op.compress(compressor, every=op.adaptive(PRICES)))
    return len(compressions(events))


async def test_runs_are_compressed_earlier_if_the_provider_does_not_cache() -> None:
    assert await count_compressions(1.0) < await count_compressions(0.0)
