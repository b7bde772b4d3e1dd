from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rxloop.context import TokenEstimator
from rxloop.context.compression import CompressionResult, CompressionState
from rxloop.context.layout import find_problems, split_blocks
from rxloop.pipeline.interfaces import Compressor, TokenCounter
from rxloop.protocol.messages import Message
from support.histories import WordCounter, compress, every_compressor, histories

# 2,000 with RXLOOP_EXAMPLES=2000.
few_examples = settings(
    max_examples=int(os.environ.get("RXLOOP_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
windows = st.integers(0, 40) | st.integers(0, 4_000)


def check(
    history: list[Message], result: CompressionResult, tokens: int, counter: TokenCounter, pins: frozenset[int]
) -> None:
    sent = list(result.messages)
    kept = {id(message) for message in sent}
    blocks = split_blocks(history)
    assert find_problems(sent) == []  # T93
    assert counter.count(sent) == result.tokens_after
    assert result.budget_unmet == (result.tokens_after > tokens)  # T100
    assert (result.failed, result.problems) == ("", ())
    task = next((message for message in history if message.role == "user"), None)
    assert task is None or id(task) in kept  # T98
    assert all(id(message) in kept for message in history if message.role == "system")
    assert all(id(history[index]) in kept for index in pins)
    if blocks and blocks[-1].open:  # T97
        assert [m.tool_calls for m in sent[-len(blocks[-1].messages) :]] == [m.tool_calls for m in blocks[-1].messages]
    kept_indexes = [index for index, message in enumerate(history) if id(message) in kept]
    order = [
        next(index for index in kept_indexes if history[index] is message) for message in sent if message in history
    ]
    assert order == sorted(order) or len({id(m) for m in history}) < len(history)
    for message in sent:  # T112: only results may change
        is_original = any(message is one for one in history)
        assert is_original or message.role == "tool" or message.text.startswith("[")
    assert sum(m.text.startswith("[") and m.role == "user" for m in sent) <= 1


@every_compressor
@few_examples
@given(history=histories(), tokens=windows, data=st.data())
@example(history=[], tokens=0, data=None)
def test_request_is_valid_and_meets_or_reports_its_budget(
    make: Callable[[int], Compressor], history: list[Message], tokens: int, data: st.DataObject | None
) -> None:
    pins = data.draw(st.frozensets(st.integers(0, len(history) - 1), max_size=2)) if data and history else frozenset()
    counter = WordCounter()
    result = compress(make(tokens), history, counter, pinned=pins)
    check(history, result, tokens, counter, pins)


@every_compressor
@few_examples
@given(history=histories(), tokens=windows)
def test_requests_of_a_growing_history_only_grow_between_compressions(
    make: Callable[[int], Compressor], history: list[Message], tokens: int
) -> None:
    counter = TokenEstimator()
    state: CompressionState | None = None
    before: list[Message] = []
    for block in split_blocks(history):
        so_far = history[: block.places.stop]
        result = compress(make(tokens), so_far, counter, state=state)
        check(so_far, result, tokens, counter, frozenset())
        if not result.cut:  # T101
            assert [id(m) for m in result.messages[: len(before)]] == [id(m) for m in before]
        assert (
            compress(make(tokens), so_far, counter, state=CompressionState.load(result.state.dump())).messages
            == result.messages
        )
        state, before = result.state, list(result.messages)
