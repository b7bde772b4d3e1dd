"""Okapi BM25 over the words of blocks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from rxloop.context._cache import PerMessage
from rxloop.context._layout import text_of
from rxloop.protocol.messages import Message

_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|\w{2,}")
_K, _B = 1.2, 0.75


def _words(message: Message) -> Counter[str]:
    return Counter(_WORD.findall(text_of([message]).lower()))


_words_of = PerMessage(_words)


def bag_of(messages: Sequence[Message]) -> Counter[str]:
    """Count how often each word occurs in some messages."""
    total: Counter[str] = Counter()
    for message in messages:
        total.update(_words_of(message))
    return total


def bm25(query: Counter[str], bags: Sequence[Counter[str]]) -> list[float]:
    """Score how well each bag of words fits the query."""
    if not bags:
        return []
    lengths = [sum(one.values()) for one in bags]
    mean = sum(lengths) / len(bags) or 1.0
    scores = [0.0] * len(bags)
    for word in query:
        holders = [(i, one[word]) for i, one in enumerate(bags) if word in one]
        if not holders:
            continue
        rarity = math.log(1 + (len(bags) - len(holders) + 0.5) / (len(holders) + 0.5))
        for i, n in holders:
            scores[i] += rarity * n * (_K + 1) / (n + _K * (1 - _B + _B * lengths[i] / mean))
    return scores
