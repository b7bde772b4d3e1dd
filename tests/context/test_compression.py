from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context import TokenEstimator
from rxloop.context.compression import Compression, CompressionState
from rxloop.pipeline.interfaces import Budget, Compressor
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart
from rxloop.state.history import History
from support.histories import call, compress, long_history, turn

counter = TokenEstimator()


class UncalledCompressor:
    """Compressor that must not be called."""

    max_tokens = 100_000

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
        raise AssertionError("unexpected call")


class FixedCompressor:
    """Compressor with a fixed result, or a function that computes it."""

    max_tokens = 1_000

    def __init__(self, result: Any) -> None:
        self.result = result

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        return self.result(messages) if callable(self.result) else self.result


def test_history_below_the_watermark_is_unchanged() -> None:
    # T99
    for history in (History(), History(long_history(5)), []):
        result = compress(UncalledCompressor(), history, counter)
        assert result.messages is history
        assert result.state == CompressionState()
        assert not result.cut
        assert result.ratio == 1.0
        assert result.stable == len(history)


def test_request_only_grows_at_its_end_between_compressions() -> None:
    # T101
    compressor = SlidingWindowCompressor(2_000)
    history = long_history(0)
    state: CompressionState | None = None
    before: list[Message] = []
    compressions = steps = 0
    for number in range(120):
        history += turn((call(f"c{number}", page=number), f"result {number}: " + "some words of it " * 8))
        result = compress(compressor, history, counter, state=state)
        assert result.tokens_after <= 2_000
        if result.cut:
            compressions += 1
            assert result.stable == 1
        else:
            steps += 1
            assert [id(message) for message in result.messages[: len(before)]] == [id(message) for message in before]
        state, before = result.state, list(result.messages)
    assert 3 <= compressions <= 12
    assert steps > 8 * compressions


def test_stored_state_yields_the_same_request_in_another_process() -> None:
    # T109
    compressor = TokenBudgetCompressor(1_500)
    history = long_history(40)
    result = compress(compressor, history, counter)
    assert result.cut
    stored = json.loads(json.dumps(result.state.dump()))
    assert CompressionState.load(stored) == result.state
    copies = [Message.model_validate_json(message.model_dump_json()) for message in history]
    copies += long_history(2)[1:]
    repeated = compress(compressor, copies, counter, state=CompressionState.load(stored))
    assert not repeated.cut
    assert list(repeated.messages[: len(result.messages)]) == list(result.messages)


def test_state_contains_the_omitted_messages() -> None:
    # L125
    history = long_history(40)
    result = compress(SlidingWindowCompressor(1_500), history, counter)
    kept_indexes = {index for index, message in enumerate(history) if any(message is one for one in result.messages)}
    assert set(result.state.omitted) == set(range(len(history))) - kept_indexes
    assert result.dropped == len(result.state.omitted)
    assert result.state.summary == result.messages[1].text
    assert len(json.dumps(result.state.dump())) < 200 + len(result.state.summary) * 1.2


def test_state_of_another_history_is_ignored() -> None:
    result = compress(SlidingWindowCompressor(1_500), long_history(40), counter)
    short = long_history(3)
    assert compress(SlidingWindowCompressor(1_500), short, counter, state=result.state).messages is short


def test_overhead_reduces_the_budget_of_messages() -> None:
    history = long_history(40)
    result = compress(SlidingWindowCompressor(4_000), history, counter, overhead=2_500)
    assert result.tokens_after <= 1_500
    assert compress(SlidingWindowCompressor(4_000), history, counter, overhead=9_000).budget_unmet


def test_request_stays_smaller_after_a_context_length_error() -> None:
    compressor = SlidingWindowCompressor(50_000)
    history = long_history(60)
    first = compress(compressor, history, counter, overhead=500)
    assert not first.cut
    second = compress(compressor, history, counter, state=first.state, overhead=500, pressure=1)
    assert second.cut
    assert second.tokens_after < 0.8 * first.tokens_after
    third = compress(compressor, history, counter, state=second.state, overhead=500, pressure=2)
    assert third.tokens_after < 0.8 * second.tokens_after
    longer = [*history, *long_history(60)[1:]]
    later = compress(compressor, longer, counter, state=CompressionState.load(second.state.dump()), overhead=500)
    assert later.tokens_after + 500 < first.tokens_after + 500


def test_unmet_budget_is_reported_with_the_smallest_request() -> None:
    # T100
    history = [Message.user("word " * 5_000), *long_history(5)[1:]]
    result = compress(SlidingWindowCompressor(1_000), history, counter)
    assert result.budget_unmet
    assert len(result.messages) == 4
    assert compress(SlidingWindowCompressor(1_000), long_history(5), counter).budget_unmet is False


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "the result is NoneType: return a list of messages"),
        ("text", "the result is str: return a list of messages"),
        ([1], "the result holds 1: return a list of messages"),
        (lambda messages: [*messages[::-1]], "keep the order"),
        (lambda messages: [*messages, Message.user("word " * 500)], "more than the"),
    ],
    ids=["nothing", "text", "numbers", "backwards", "larger"],
)
def test_invalid_result_is_discarded_and_reported(returned: Any, reason: str) -> None:
    # T115
    history = long_history(30)
    result = compress(FixedCompressor(returned), history, counter)
    assert reason in result.failed
    assert result.messages is history
    assert result.state == CompressionState()
    assert not result.cut
    assert result.budget_unmet


async def test_history_is_unchanged_when_a_compressor_raises() -> None:
    class Raising:
        max_tokens = 1_000

        def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            raise KeyError("oops")

    class RaisingLater:
        max_tokens = 1_000

        async def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            raise KeyError("oops")

    history = long_history(30)
    for compressor in (Raising(), RaisingLater()):
        result = await Compression(compressor, history, counter).result()
        assert result.failed == "KeyError: 'oops'"
        assert result.messages is history


def test_broken_pair_of_a_custom_compressor_is_repaired_and_reported() -> None:
    # T95
    history = long_history(30)
    result = compress(
        FixedCompressor(lambda messages: [messages[0], *messages[-4:], *[]][0:1] + list(messages[-3:])),
        history,
        counter,
    )
    assert [id(message) for message in result.messages] == [id(history[0]), *(id(one) for one in history[-2:])]
    assert result.problems == ("message 1 answers the call 'call_28', which nothing before it makes",)
    assert result.cut


def test_task_and_pinned_messages_are_restored_if_a_custom_compressor_drops_them() -> None:
    # T98
    history = long_history(30)
    history[5:5] = [Message.assistant("Keep this.")]
    result = compress(FixedCompressor(lambda messages: messages[-4:]), history, counter, pinned=frozenset({5}))
    assert [id(message) for message in result.messages[:2]] == [id(history[0]), id(history[5])]
    assert result.problems == ("message 0 of the history must stay", "message 5 of the history must stay")


def test_pinned_call_keeps_its_results() -> None:
    history = long_history(30)
    result = compress(SlidingWindowCompressor(1_500), history, counter, pinned=frozenset({6}))
    assert any(message is history[5] for message in result.messages)
    assert any(message is history[6] for message in result.messages)
    lost = compress(
        FixedCompressor(lambda messages: [messages[0], *messages[-2:]]), history, counter, pinned=frozenset({6})
    )
    assert [message.role for message in lost.messages[:3]] == ["user", "assistant", "tool"]


def test_open_calls_are_restored_if_a_custom_compressor_drops_them() -> None:
    # T97
    history = [*long_history(30), Message.assistant(tool_calls=[call("open")])]
    result = compress(FixedCompressor(lambda messages: list(messages[:1])), history, counter)
    assert result.messages[-1] is history[-1]


def test_custom_compressor_needs_ten_lines() -> None:
    class LastMessages:
        max_tokens = 1_000

        def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            remaining = list(messages)
            while len(remaining) > 1 and budget.count(*remaining) > budget.target:
                remaining.pop(0)
            return remaining

    compressor: Compressor = LastMessages()
    history = long_history(30)
    result = compress(compressor, history, counter)
    assert result.messages[0] is history[0]
    assert result.tokens_after <= 1_000
    after = compress(compressor, [*history, Message.user("And now?")], counter, state=result.state)
    assert not after.cut
    assert list(after.messages[:-1]) == list(result.messages)


def test_rewritten_message_with_images_survives_json() -> None:
    parts = [
        TextPart(text="See."),
        ImagePart(data=b"\xff\xfe\xfb", media_type="image/png"),
        FilePart(url="https://x.org/a"),
    ]
    state = CompressionState(3, (0, Message.user(parts), Message.tool("a", [parts[1]])))
    assert CompressionState.load(json.loads(json.dumps(state.dump()))) == state
