"""Compressors: sliding window, token budget, and chains."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

from rxloop.context.layout import Layout, Marks, brief, join_texts, replace_content, strip_media
from rxloop.context.token_estimator import PerMessage
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Budget, Compressor
from rxloop.protocol.messages import Message
from rxloop.support.misuse import check_argument, check_method, check_minimum, check_positive
from rxloop.support.threads import call_user_function


class SlidingWindowCompressor(Marks):
    """Compressor that keeps the most recent messages.

    Facts from the removed messages are summarised after the task. The window has a token limit, a message limit, or
    both. When a limit is reached, the history is compressed to `low` times the limit.

    Example:
        ```python
        Agent(model, loop=[op.compress(SlidingWindowCompressor(max_tokens=60_000)), op.call_model(), op.run_tools()])
        ```

    Args:
        max_tokens: Maximum size of a request. Unlimited by default.
        max_messages: Maximum number of messages, including the task and the summary. Blocks are never split, and the
            newest one is always kept.
        high: Fraction of `max_tokens` at which the history is compressed.
        low: Fraction of both limits that the request has after a compression.

    Raises:
        ConfigurationError: A limit is missing or invalid.
    """

    def __init__(
        self, max_tokens: int | None = None, *, max_messages: int | None = None, high: float = 1.0, low: float = 0.6
    ) -> None:
        if max_tokens is None and max_messages is None:
            raise ConfigurationError("SlidingWindowCompressor requires max_tokens, max_messages or both")
        check_minimum(0, optional=True, max_messages=max_messages)
        super().__init__(sys.maxsize if max_tokens is None else max_tokens, high=high, low=low)
        self.max_messages = max_messages

    def __repr__(self) -> str:
        if self.max_messages is None:
            return super().__repr__()
        tokens = "" if self.max_tokens == sys.maxsize else f"max_tokens={self.max_tokens}, "
        return f"{type(self).__name__}({tokens}max_messages={self.max_messages}, high={self.high}, low={self.low})"

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Return the messages to send."""
        layout = Layout(messages, budget)
        layout.keep_newest({})
        return layout.messages()


_SAME = "[left out: a later result says the same]"

_OMISSION_NOTE = "[left out: {n} characters]"

_BRIEF_CHARS = 400


class TokenBudgetCompressor(Marks):
    """Compressor that shortens old tool results before it drops the oldest blocks.

    Calls and the model's messages are retained longer than with a window. Repeated results are removed first, then long
    results are truncated, then old ones are blanked. Facts from removed messages are summarised.
    """

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Return the messages to send."""
        layout = Layout(messages, budget)
        repeats = _repeats(messages)
        forms: dict[int, Sequence[Message]] = {}
        over = sum(layout.costs[index] for index in layout.free) - layout.room
        steps: list[Callable[[Message], Message]] = [partial(_replace_repeated, repeats), _shorten_long, _remove_text]
        for shorten in steps:
            over = _shorten(layout, forms, shorten, over)
        layout.keep_newest(forms)
        return layout.messages()


def _shorten(
    layout: Layout, forms: dict[int, Sequence[Message]], shorten: Callable[[Message], Message], over: int
) -> int:
    """Shorten results in optional blocks, oldest first, and return the remaining excess tokens."""
    for index in layout.free:
        if over <= 0:
            break
        block = layout.blocks[index]
        if not block.calls:
            continue
        old = forms.get(index, block.messages)
        new = [shorten(message) if message.role == "tool" else message for message in old]
        cost = layout.budget.count(*new)
        if cost < layout.costs[index]:
            over -= layout.costs[index] - cost
            layout.costs[index] = cost
            forms[index] = new
    return over


def _repeats(messages: Sequence[Message]) -> set[int]:
    """Return the ids of results that a later one repeats. Images never count as repeated."""
    texts: set[str] = set()
    repeated: set[int] = set()
    for message in reversed(messages):
        if message.role == "tool" and not message.media:
            if message.text in texts:
                repeated.add(id(message))
            texts.add(message.text)
    return repeated


def _replace_repeated(repeats: set[int], message: Message) -> Message:
    return replace_content(message, _SAME) if id(message) in repeats and len(message.text) > len(_SAME) else message


def _shorten_long(message: Message) -> Message:
    return brief(message, _BRIEF_CHARS) if len(message.text) > 2 * _BRIEF_CHARS else message


def _remove_text(message: Message) -> Message:
    text = message.text
    if len(text) > 2 * len(_OMISSION_NOTE):
        return replace_content(message, _OMISSION_NOTE.format(n=len(text)))
    return strip_media(message)


class ChainedCompressor(Marks):
    """Compressor that runs several compressors until the budget is met.

    Each one receives the previous result without its summary, so the final summary covers all dropped messages.

    Args:
        compressors: Compressors in the order to try.
        max_tokens: Maximum size of a request. The default is the lowest limit of the compressors.
        high: Fraction of the limit at which the history is compressed.
        low: Fraction of the limit that the request has after a compression.

    Raises:
        ConfigurationError: There are no compressors, or a limit is invalid.
    """

    def __init__(
        self, *compressors: Compressor, max_tokens: int | None = None, high: float = 1.0, low: float = 0.6
    ) -> None:
        if not compressors:
            raise ConfigurationError("ChainedCompressor() requires at least one compressor")
        for compressor in compressors:
            check_method("a compressor", compressor, "compress", "a compressor, such as TokenBudgetCompressor(8_000)")
        lowest = min(compressor.max_tokens for compressor in compressors)
        super().__init__(lowest if max_tokens is None else max_tokens, high=high, low=low)
        windows = [
            limit for compressor in compressors if (limit := getattr(compressor, "max_messages", None)) is not None
        ]
        self.max_messages = min(windows, default=None)
        self.compressors = compressors

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the messages to send."""
        return self._run_compressors(0, messages, messages, budget)

    def _run_compressors(
        self, first: int, history: Sequence[Message], messages: Sequence[Message], budget: Budget
    ) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        for index in range(first, len(self.compressors)):
            remaining = budget if index == 0 else _remaining_budget(history, messages, budget)
            pending = messages if index == 0 else _remove_summary(history, messages)
            result = self.compressors[index].compress(pending, remaining)
            if isawaitable(result):
                return self._await_and_continue(index, history, result, budget)
            messages = result
            if budget.counter.count(messages) <= budget.target:
                break
        return messages

    async def _await_and_continue(
        self, index: int, history: Sequence[Message], pending: Awaitable[Sequence[Message]], budget: Budget
    ) -> Sequence[Message]:
        messages = await pending
        if budget.counter.count(messages) <= budget.target:
            return messages
        rest = self._run_compressors(index + 1, history, messages, budget)
        return await rest if isawaitable(rest) else rest


def _remove_summary(history: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    own = {id(message) for message in history}
    return [message for message in messages if id(message) in own or message.role in ("tool", "assistant")]


def _remaining_budget(history: Sequence[Message], messages: Sequence[Message], budget: Budget) -> Budget:
    """Return the budget for the next compressor, with updated dropped and pinned messages."""
    pins = {id(history[index]) for index in budget.pinned if index < len(history)}
    left = _remove_summary(history, messages)
    remaining = {id(message) for message in left}
    return replace(
        budget,
        pinned=frozenset(index for index, message in enumerate(left) if id(message) in pins),
        dropped=[message for message in history if id(message) not in remaining],
    )


_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|\w{2,}")

_K, _B = 1.2, 0.75


def _words(message: Message) -> Counter[str]:
    return Counter(_WORD.findall(join_texts([message]).lower()))


_words_of = PerMessage(_words)


def count_words(messages: Sequence[Message]) -> Counter[str]:
    """Count all words in the messages."""
    total: Counter[str] = Counter()
    for message in messages:
        total.update(_words_of(message))
    return total


def bm25(query: Counter[str], bags: Sequence[Counter[str]]) -> list[float]:
    """Return the BM25 score for each bag of words."""
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
"""Async function that returns embedding vectors for a list of strings."""

_log = logging.getLogger(__name__)

_REMEMBERED = 4_096

_MAX_EMBEDDED_CHARS = 8_000


class SemanticCompressor(Marks):
    """Compressor that selects blocks by relevance and recency.

    Relevance is measured against the task, the last user message and the newest block. Message order is preserved, and
    facts from removed messages are summarised.

    Args:
        max_tokens: Maximum request size.
        high: High watermark as a fraction of the limit. Compression starts at this size.
        low: Low watermark as a fraction of the limit. Target size after compression.
        relevance: Relevance weight, relative to a weight of 1 for recency.
        embed: Embedding function. Defaults to BM25 scoring, which is also the fallback after errors.
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
        check_positive(zero=True, relevance=relevance)
        check_argument("embed", embed, embed is None or callable(embed), "a function of a list of strings")
        self.relevance = relevance
        self._embed = embed
        # Vectors only depend on the text, so runs can share them.
        self._vectors: OrderedDict[str, Sequence[float]] = OrderedDict()

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message] | Awaitable[list[Message]]:
        """Return the messages to send."""
        layout = Layout(messages, budget)
        if self._embed is None:
            return self._select_blocks(layout, _score_by_words(layout))
        return self._compress_by_vectors(layout, self._embed)

    async def _compress_by_vectors(self, layout: Layout, embed: Embedder) -> list[Message]:
        try:
            fitting = await self._score_by_vectors(layout, embed)
        except Exception:
            _log.warning("Embedding failed, falling back to BM25", exc_info=True)
            fitting = _score_by_words(layout)
        return self._select_blocks(layout, fitting)

    def _select_blocks(self, layout: Layout, fitting: Sequence[float]) -> list[Message]:
        """Select blocks by score within the token limit. Newer blocks win ties."""
        free = layout.free
        newest = max(1, len(free) - 1)
        scores = [self.relevance * fits + age / newest for age, fits in enumerate(fitting)]
        for index in sorted(range(len(free)), key=lambda index: (-scores[index], -index)):
            if layout.has_room(free[index]):
                layout.keep(free[index])
        return layout.messages()

    async def _score_by_vectors(self, layout: Layout, embed: Embedder) -> list[float]:
        texts = [join_texts(layout.blocks[index].messages)[:_MAX_EMBEDDED_CHARS] for index in layout.free]
        goal = "\n".join(join_texts(messages)[:_MAX_EMBEDDED_CHARS] for messages in _goal(layout))
        cache = self._vectors
        missing = list(dict.fromkeys(text for text in (goal, *texts) if text not in cache))
        embedded = dict(zip(missing, await call_user_function(embed, missing), strict=True)) if missing else {}
        vectors = {text: cache[text] if text in cache else embedded[text] for text in (goal, *texts)}
        cache.update(vectors)
        while len(cache) > _REMEMBERED:
            cache.popitem(last=False)
        return [_cosine(vectors[goal], vectors[text]) for text in texts]


def _goal(layout: Layout) -> list[Sequence[Message]]:
    """Return the task, the newest question and the newest block, without duplicates."""
    question = next((block for block in reversed(layout.blocks) if block.messages[0].role == "user"), None)
    blocks = [layout.blocks[layout.task] if layout.task is not None else None, question, *layout.blocks[-1:]]
    return list({block.start: block.messages for block in blocks if block is not None}.values())


def _score_by_words(layout: Layout) -> list[float]:
    """Return a relevance score from 0 to 1 for each free block, based on its words."""
    goal: Counter[str] = Counter()
    for messages in _goal(layout):
        goal.update(count_words(messages))
    scores = bm25(goal, [count_words(layout.blocks[index].messages) for index in layout.free])
    best = max(scores, default=0.0) or 1.0
    return [score / best for score in scores]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.sqrt(math.fsum(x * x for x in one) * math.fsum(y * y for y in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0


_NAMES: Mapping[str, Callable[..., Compressor]] = {
    "sliding_window": SlidingWindowCompressor,
    "semantic": SemanticCompressor,
    "token_budget": TokenBudgetCompressor,
}


def make_compressor(name: str, **options: Any) -> Compressor:
    """Create a compressor from its name, for example from a configuration file.

    Args:
        name: `"sliding_window"`, `"semantic"` or `"token_budget"`.
        **options: Arguments of the compressor, such as `max_tokens=60_000`.

    Raises:
        ConfigurationError: The name or an option is unknown, or an option is missing.
    """
    check_argument("name", name, name in _NAMES, f"one of {', '.join(_NAMES)}")
    try:
        return _NAMES[name](**options)
    except TypeError as error:
        raise ConfigurationError(f"options of the compressor {name!r} are invalid: {error}.") from error
