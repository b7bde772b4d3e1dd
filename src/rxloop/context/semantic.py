"""Blocks ranked by relevance to the goal, by embeddings or BM25."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rxloop.context.counting import PerMessage
from rxloop.context.layout import Layout, Marks, text_of
from rxloop.pipeline.interfaces import Budget
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


Embedder = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Turns texts into vectors, one for each."""

_log = logging.getLogger(__name__)

_REMEMBERED = 4_096

_TEXT = 8_000


class SemanticCompressor(Marks):
    """Keeps the blocks most relevant to the goal, newer ones before older ones, and the facts of the others.

    The goal is what the task, the last user message and the newest block are about. What stays, stays in order.

    Args:
        max_tokens: What a whole request may take.
        high: The part of it at which the history is cut.
        low: The part of it that the request has after a cut.
        relevance: What it counts to fit the goal perfectly, against 1 for being the newest.
        embed: Measures fitting by the vectors that this gives; without it, and when it fails, by words (BM25).
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        high: float = 1.0,
        low: float = 0.6,
        relevance: float = 1.0,
        embed: Embedder | None = None,
    ) -> None:
        super().__init__(max_tokens, high=high, low=low)
        self.relevance = relevance
        self._embed = embed
        # Vectors of texts, not of runs: the same text has the same one wherever it stands.
        self._vectors: OrderedDict[str, Sequence[float]] = OrderedDict()

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message] | Awaitable[list[Message]]:
        """Choose the messages to send instead of the history."""
        layout = Layout(messages, budget)
        if self._embed is None:
            return self._selected(layout, _by_words(layout))
        return self._compress_by_vectors(layout, self._embed)

    async def _compress_by_vectors(self, layout: Layout, embed: Embedder) -> list[Message]:
        try:
            fitting = await self._by_vectors(layout, embed)
        except Exception:
            _log.warning("the embedder failed: relevance is measured by words instead", exc_info=True)
            fitting = _by_words(layout)
        return self._selected(layout, fitting)

    def _selected(self, layout: Layout, fitting: Sequence[float]) -> list[Message]:
        """Keep what counts most, the newest first among equals, as far as there is room."""
        free = layout.free
        newest = max(1, len(free) - 1)
        scores = [self.relevance * fits + age / newest for age, fits in enumerate(fitting)]
        for place in sorted(range(len(free)), key=lambda place: (-scores[place], -place)):
            if layout.has_room(free[place]):
                layout.keep(free[place])
        return layout.messages()

    async def _by_vectors(self, layout: Layout, embed: Embedder) -> list[float]:
        texts = [text_of(layout.blocks[index].messages)[:_TEXT] for index in layout.free]
        goal = "\n".join(text_of(messages)[:_TEXT] for messages in _goal(layout))
        kept = self._vectors
        missing = list(dict.fromkeys(text for text in (goal, *texts) if text not in kept))
        found = dict(zip(missing, await embed(missing), strict=True)) if missing else {}
        vectors = {text: kept[text] if text in kept else found[text] for text in (goal, *texts)}
        kept.update(vectors)
        while len(kept) > _REMEMBERED:
            kept.popitem(last=False)
        return [_cosine(vectors[goal], vectors[text]) for text in texts]


def _goal(layout: Layout) -> list[Sequence[Message]]:
    blocks = [layout.blocks[layout.task]] if layout.task is not None else []
    blocks += [block for block in layout.blocks[-2:] if block not in blocks]
    return [block.messages for block in blocks]


def _by_words(layout: Layout) -> list[float]:
    """Score how well each free block fits the goal by its words, from 0 to 1."""
    goal: Counter[str] = Counter()
    for messages in _goal(layout):
        goal.update(bag_of(messages))
    scores = bm25(goal, [bag_of(layout.blocks[index].messages) for index in layout.free])
    best = max(scores, default=0.0) or 1.0
    return [score / best for score in scores]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.sqrt(math.fsum(x * x for x in one) * math.fsum(y * y for y in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0
