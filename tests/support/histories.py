"""Valid histories for tests of the context: made by hand, and made at random."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from rxloop import SemanticCompressor, SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context import ChainedCompressor, TokenEstimator
from rxloop.context.compression import Compressed, Compression
from rxloop.pipeline.interfaces import Budget, Compressor, TokenCounter
from rxloop.protocol.messages import ImagePart, Message, TextPart, ToolCall

WORDS = [
    "order", "ticket", "invoice", "merge", "branch", "deploy", "refund", "server",
    "заказ", "клиент", "订单", "客户", "Straße",
]  # fmt: skip
IMAGE = ImagePart(data=b"\x89PNG\xff", media_type="image/png")
COMPRESSORS: dict[str, Callable[[int], Compressor]] = {
    "sliding window": SlidingWindowCompressor,
    "semantic": SemanticCompressor,
    "token budget": TokenBudgetCompressor,
    "chain": lambda tokens: ChainedCompressor(TokenBudgetCompressor(tokens), SlidingWindowCompressor(tokens)),
}
every_compressor = pytest.mark.parametrize("make", COMPRESSORS.values(), ids=COMPRESSORS.keys())


class Words:
    """Counts words and messages, so that a test can count along."""

    def count(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> int:
        return sum(
            1 + len(m.text.split()) + sum(2 + len(str(call.arguments).split()) for call in m.tool_calls)
            for m in messages
        )


def call(call_id: str, name: str = "look_up", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def turn(*calls_and_results: tuple[ToolCall, str], text: str = "", reasoning: str | None = None) -> list[Message]:
    """An assistant message with its calls, and the results."""
    calls = tuple(one for one, _ in calls_and_results)
    first = Message(role="assistant", content=text, tool_calls=calls, reasoning=reasoning)
    return [first, *(Message.tool(one.id, result) for one, result in calls_and_results)]


def long_history(turns: int, size: int = 40) -> list[Message]:
    """A task and many turns of one call each, each with an id of its own."""
    messages = [Message.user("Find out which order of customer C-77 is late.")]
    for number in range(turns):
        filler = " ".join(f"line {place} of the report is quite ordinary" for place in range(size // 7 + 1))
        one = call(f"call_{number}", customer="C-77", page=number)
        messages += turn((one, f'{{"order_id": "ORD-{9000 + number}", "note": "{filler}"}}'))
    return messages


def budget(messages: Sequence[Message], tokens: int, target: int | None = None, **fields: Any) -> Budget:
    counter = TokenEstimator()
    return Budget(tokens=tokens, target=tokens if target is None else target, counter=counter, sent=messages, **fields)


_text = st.lists(st.sampled_from(WORDS) | st.from_regex(r"[A-Z]{2}-\d{3,5}", fullmatch=True), max_size=12).map(" ".join)
_long = st.tuples(_text, st.sampled_from([1, 1, 1, 4, 30])).map(lambda pair: "\n".join([pair[0]] * pair[1]))


_content = _long | st.builds(
    lambda text, images: [TextPart(text=text), *[IMAGE] * images] if images else text,
    _long,
    st.sampled_from([0, 1, 1, 3]),
)


@st.composite
def _turns(draw: Callable[[st.SearchStrategy[Any]], Any], number: int) -> list[Message]:
    kind = draw(st.sampled_from(["user", "answer", "calls", "calls", "calls", "system"]))
    if kind == "user":
        return [Message.user(draw(_long) or "Go on.")]
    if kind == "answer":
        return [Message(role="assistant", content=draw(_content), reasoning=draw(st.none() | _text))]
    if kind == "system":
        return [Message.system(draw(_text))]
    count = draw(st.integers(1, 4))
    # Some vendors count their ids anew in each message.
    ids = [f"{place}" if draw(st.booleans()) else f"call_{number}_{place}" for place in range(count)]
    calls = [call(one, draw(st.sampled_from(["look_up", "write_file"])), key=draw(_text)) for one in ids]
    results = draw(st.permutations([Message.tool(one, draw(_content)) for one in ids]))
    first = Message(role="assistant", content=draw(_text), tool_calls=tuple(calls), reasoning=draw(st.none() | _text))
    return [first, *results]


@st.composite
def histories(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Message]:
    """A valid history, whose last calls may be without results yet."""
    messages = [Message.user(draw(_text) or "Do it.")] if draw(st.integers(0, 9)) else []
    for number in range(draw(st.integers(0, 9))):
        messages += draw(_turns(number))
    if draw(st.booleans()):
        open_calls = tuple(call(f"open_{place}", key="value") for place in range(draw(st.integers(1, 3))))
        messages.append(Message.assistant("", tool_calls=open_calls))
        answered = draw(st.integers(0, len(open_calls) - 1))
        messages += [Message.tool(one.id, draw(_content)) for one in open_calls[:answered]]
    return messages


def compressed(
    compressor: Compressor,
    messages: Sequence[Message],
    counter: TokenCounter,
    *,
    pinned: frozenset[int] = frozenset(),
    **options: Any,
) -> Compressed:
    """Compress a history once."""
    return asyncio.run(Compression(compressor, messages, counter, **options).result(pinned=pinned))
