"""Compression of the messages of a single request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import orjson

from rxloop.context.layout import Block, find_problems, repair_messages, split_blocks
from rxloop.pipeline.interfaces import Budget, Compressor, Growth, TokenCounter, Trigger
from rxloop.protocol.messages import Message, Usage
from rxloop.support.threads import call_user_function

_DEFAULT_LOW = 0.6

_AFTER_REFUSAL = 0.8


@dataclass(frozen=True, slots=True)
class CompressionState:
    """State of the last compression.

    Together with the history, it determines the messages to send in any process. See `dump` and `load`.
    """

    upto: int = 0
    """Length of the history at the last compression. Later messages are sent unchanged."""
    view: tuple[int | Message, ...] = ()
    """Messages to send for this part: indexes in the history, or replacement messages."""
    limit: int | None = None
    """Lower token limit, if a provider has rejected a request within the compressor's own limit."""

    def messages(self, history: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to send. If nothing was compressed, this is the history itself."""
        if not self.upto or self.upto > len(history):
            return history
        cut = [history[item] if isinstance(item, int) else item for item in self.view]
        return [*cut, *history[self.upto :]]

    @property
    def omitted(self) -> tuple[int, ...]:
        """Indexes of omitted or replaced messages."""
        kept = {item for item in self.view if isinstance(item, int)}
        return tuple(index for index in range(self.upto) if index not in kept)

    @property
    def summary(self) -> str:
        """Text that replaces the omitted messages."""
        added = (item for item in self.view if isinstance(item, Message))
        return "\n".join(item.text for item in added if item.role not in ("tool", "assistant"))

    def dump(self) -> dict[str, Any]:
        """Convert the state to JSON data. Consecutive indexes are stored as `[first, last]`."""
        view: list[Any] = []
        for item in self.view:
            if isinstance(item, Message):
                view.append(_written(item))
            elif view and isinstance(view[-1], list) and view[-1][1] == item - 1:
                view[-1][1] = item
            else:
                view.append([item, item])
        return {"upto": self.upto, "view": view, "limit": self.limit}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> CompressionState:
        """Load a state from `dump`."""
        view: list[int | Message] = []
        for item in data["view"]:
            if isinstance(item, list):
                first, last = cast("list[int]", item)
                view += range(first, last + 1)
            else:
                # Validate in JSON mode, because binary data is base64-encoded.
                view.append(Message.model_validate_json(orjson.dumps(item)))
        return cls(data["upto"], tuple(view), data.get("limit"))


def _written(message: Message) -> dict[str, Any]:
    fields = message.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"message_id"})
    if not isinstance(message.content, str):
        # A part's type is a default value, but required to identify it.
        fields["content"] = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in message.content]
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    """Result of a compression."""

    messages: Sequence[Message]
    """Messages to send. If nothing was ever compressed, this is the history itself."""
    state: CompressionState
    """Compression state for the next request."""
    tokens_before: int
    """Tokens without this compression."""
    tokens_after: int
    cut: bool = False
    """True if the history was compressed in this step."""
    dropped: int = 0
    """Number of messages that this step removed."""
    shortened: int = 0
    """Number of tool results that this step truncated."""
    stable: int = 0
    """Number of unchanged leading messages, which may be cached by the provider."""
    stable_tokens: int = 0
    budget_unmet: bool = False
    """True if the messages are too large and nothing more can be removed."""
    problems: tuple[str, ...] = ()
    """Problems in the compressor's result that were repaired."""
    failed: str = ""
    """Reason for discarding the compressor's result, or empty. The messages are unchanged in this case."""
    seconds: float = 0.0
    """Duration in seconds."""
    reason: str = "overflow"
    """Reason for compressing: `overflow`, or `steps` if it was due but there was room."""

    @property
    def ratio(self) -> float:
        """Token count after compression divided by the count before."""
        return self.tokens_after / self.tokens_before if self.tokens_before else 1.0


class Compression:
    """Compression of a history, if necessary.

    Args:
        compressor: Selects the messages to keep.
        messages: Complete history.
        counter: Counts tokens.
        state: State from the previous result in this run.
        overhead: Tokens for the system prompt, tools and workspace.
        pressure: Greater than 0 if a provider has just rejected the previous request as too long.
        every: Also compress after this number of assistant messages.
    """

    def __init__(
        self,
        compressor: Compressor,
        messages: Sequence[Message],
        counter: TokenCounter,
        *,
        state: CompressionState | None = None,
        overhead: int = 0,
        pressure: int = 0,
        every: int | None = None,
    ) -> None:
        state = state or CompressionState()
        if state.upto > len(messages):
            # Discard state that belongs to a different history, for example after a fork.
            state = CompressionState(limit=state.limit)
        self._compressor = compressor
        self._history = messages
        self._counter = counter
        self._sent = state.messages(messages)
        self._tokens = counter.count(self._sent)
        limit = compressor.max_tokens if state.limit is None else min(compressor.max_tokens, state.limit)
        if pressure:
            limit = min(limit, int((self._tokens + overhead) * _AFTER_REFUSAL))
            state = replace(state, limit=limit)
        self._state = state
        self._low: float = getattr(compressor, "low", _DEFAULT_LOW)
        self._room = max(0, limit - overhead)
        high: float = getattr(compressor, "high", 1.0)
        limit: int | None = getattr(compressor, "max_messages", None)
        self._full = self._tokens > int(self._room * high) or (limit is not None and len(self._sent) > limit)
        self._due = every is not None and _calls_since(messages, state.upto, every)

    @property
    def fits(self) -> bool:
        """True if no compression is needed."""
        return not self._due and not self._full

    def measure(self, since: int, usage: Usage, model: str) -> Growth:
        """Return the growth of the history since an index.

        Args:
            since: Length of the history at that time.
            usage: Usage of the run so far.
            model: Name of the model.
        """
        new = self._history[since:]
        return Growth(
            calls=sum(message.role == "assistant" for message in new),
            messages=len(new),
            tokens=self._counter.count(new),
            sent=self._tokens,
            target=int(min(self._room, self._tokens) * self._low),
            limit=self._room,
            cached=usage.cached_tokens / usage.input_tokens if usage.input_tokens else 1.0,
            model=model,
        )

    def require(self, growth: Growth, trigger: Trigger) -> None:
        """Compress even if the messages fit, if a trigger decides so."""
        self._due = self._due or trigger(growth)

    async def result(self, *, pinned: frozenset[int] = frozenset(), seconds: float | None = None) -> CompressionResult:
        """Run the compressor if necessary and validate the result.

        Custom synchronous compressors run in a thread to avoid blocking the event loop.

        Args:
            pinned: Indices of pinned messages.
            seconds: Timeout, or None for no limit. Messages are unchanged after a timeout.
        """
        if self.fits:
            return self.unchanged()
        low = self._low
        max_messages: int | None = getattr(self._compressor, "max_messages", None)
        budget = Budget(
            tokens=self._room,
            target=int(min(self._room, self._tokens) * low) if self._due else int(self._room * low),
            counter=self._counter,
            pinned=pinned,
            sent=self._sent,
            messages=None if max_messages is None else int(max_messages * low),
        )
        begin = time.perf_counter()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                answer = await _ask(self._compressor, self._history, budget)
        except Exception as error:
            if limit.expired():
                return self._fail(f"{self._compressor!r} took more than {seconds:g} s")
            return self._fail(f"{type(error).__name__}: {error}")
        finally:
            # A reference cycle; see `limit_time`.
            del limit
        return self.check_result(answer, pinned, time.perf_counter() - begin)

    def unchanged(self, **fields: Any) -> CompressionResult:
        """Return a result without a compression."""
        return CompressionResult(
            messages=self._sent,
            state=self._state,
            tokens_before=self._tokens,
            tokens_after=self._tokens,
            stable=len(self._sent),
            stable_tokens=self._tokens,
            budget_unmet=self._tokens > self._room,
            **fields,
        )

    def _fail(self, reason: str) -> CompressionResult:
        return self.unchanged(failed=reason)

    def check_result(self, result: object, pinned: frozenset[int], seconds: float) -> CompressionResult:
        """Check and repair a compressor's result."""
        try:
            view = _view(result, self._history)
        except ValueError as error:
            return self._fail(str(error))
        blocks = split_blocks(self._history)
        view, lost = _restore_required(view, self._history, blocks, pinned)
        chosen = [self._history[item] if isinstance(item, int) else item for item in view]
        # Missing results are allowed only for calls that are still pending in the history.
        at_work = bool(blocks) and blocks[-1].open
        problems = (*lost, *find_problems(chosen, open_tail=at_work))
        if problems:
            chosen = repair_messages(chosen, open_tail=at_work)
            view = _view(chosen, self._history)
        after = self._counter.count(chosen)
        if chosen == list(self._sent):
            return self.unchanged(seconds=seconds, problems=problems)
        if after > self._tokens:
            return self._fail(f"the result takes {after} tokens, more than the {self._tokens} before it")
        stable = _count_common(self._sent, chosen)
        results = {message.tool_call_id for message in chosen if message.role == "tool"}
        state = CompressionState(len(self._history), view, self._state.limit)
        originals = {id(message) for message in self._history}
        shortened = sum(m.role == "tool" and id(m) not in originals for m in chosen)
        ids = {id(message) for message in chosen}
        dropped = sum(id(m) not in ids and (m.role != "tool" or m.tool_call_id not in results) for m in self._sent)
        return CompressionResult(
            messages=chosen,
            state=state,
            tokens_before=self._tokens,
            tokens_after=after,
            cut=True,
            dropped=dropped,
            shortened=shortened,
            stable=stable,
            stable_tokens=self._counter.count(chosen[:stable]),
            budget_unmet=after > self._room,
            problems=problems,
            seconds=seconds,
            reason="overflow" if self._full else "steps",
        )


async def _ask(compressor: Compressor, messages: Sequence[Message], budget: Budget) -> object:
    """Run a compressor."""
    if not _is_ours(compressor):
        return await call_user_function(compressor.compress, messages, budget)
    result = compressor.compress(messages, budget)
    return await result if isinstance(result, Awaitable) else result


def _is_ours(compressor: Compressor) -> bool:
    """Return True if the compressor and its parts belong to this library, and therefore do not block."""
    parts: Sequence[Compressor] = getattr(compressor, "compressors", ())
    module: str = getattr(compressor.compress, "__module__", None) or ""
    return module.partition(".")[0] == "rxloop" and all(map(_is_ours, parts))


def _calls_since(history: Sequence[Message], index: int, count: int) -> bool:
    """Return True if there are at least `count` assistant messages after an index. This also works after a resume."""
    newer = (history[at] for at in range(len(history) - 1, index - 1, -1))
    return sum(1 for _ in islice((message for message in newer if message.role == "assistant"), count)) >= count


def _view(result: object, history: Sequence[Message]) -> tuple[int | Message, ...]:
    """Replace history messages with indices.

    Raises:
        ValueError: Invalid message list or changed message order.
    """
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        raise ValueError(f"the result is {type(result).__name__}: return a list of messages")
    indices: dict[int, list[int]] = {}
    for index, message in enumerate(history):
        indices.setdefault(id(message), []).append(index)
    view: list[int | Message] = []
    last = -1
    for item in cast("Sequence[object]", result):
        if not isinstance(item, Message):
            raise ValueError(f"the result holds {item!r}: return a list of messages")
        here = indices.get(id(item))
        if here is None:
            view.append(item)
            continue
        index = next((index for index in here if index > last), None)
        if index is None:
            raise ValueError(f"message {here[-1]} of the history comes after message {last}: keep the order")
        view.append(index)
        last = index
    return tuple(view)


def _restore_required(
    view: tuple[int | Message, ...], history: Sequence[Message], blocks: Sequence[Block], pinned: frozenset[int]
) -> tuple[tuple[int | Message, ...], list[str]]:
    """Add required messages that are missing.

    These are the task, the newest user message, pinned and system messages, and open calls. If a part of the newest
    block is present, so must be the rest, because the model has not seen its results.
    """
    kept = {item for item in view if isinstance(item, int)}
    users = [index for index, message in enumerate(history) if message.role == "user"]
    must = {index for index in pinned if index < len(history)} | {*users[:1], *users[-1:]}
    must |= {index for index, message in enumerate(history) if message.role == "system"}
    newest = next((block for block in reversed(blocks) if block.messages[0].role == "assistant"), None)
    for block in blocks:
        torn = block is newest and not kept.isdisjoint(block.places)
        if torn or not must.isdisjoint(block.places) or (block.open and block is blocks[-1]):
            must |= set(block.places)
    results = {item.tool_call_id for item in view if isinstance(item, Message) and item.role == "tool"}
    missing = [index for index in sorted(must - kept) if history[index].tool_call_id not in results - {None}]
    out = list(view)
    for index in missing:
        after = next((at for at, item in enumerate(out) if isinstance(item, int) and item > index), len(out))
        out.insert(after, index)
    return tuple(out), [f"message {index} of the history must stay" for index in missing]


def _count_common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return the length of the common prefix of two lists of messages."""
    length = min(len(one), len(other))
    return next(
        (index for index in range(length) if one[index] is not other[index] and one[index] != other[index]), length
    )
