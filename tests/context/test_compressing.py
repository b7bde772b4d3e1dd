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


class Refusing:
    """A compressor that must not be asked."""

    max_tokens = 100_000

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
        raise AssertionError("there was nothing to do")


class Giving:
    """A compressor that gives what a test tells it to."""

    max_tokens = 1_000

    def __init__(self, result: Any) -> None:
        self.result = result

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        return self.result(messages) if callable(self.result) else self.result


def test_an_empty_history_and_one_under_the_mark_are_left_as_they_are() -> None:
    # T99
    for history in (History(), History(long_history(5)), []):
        made = compress(Refusing(), history, counter)
        assert made.messages is history
        assert made.state == CompressionState()
        assert not made.cut
        assert made.ratio == 1.0
        assert made.stable == len(history)


def test_between_two_cuts_the_request_only_grows_at_its_end() -> None:
    # T101
    compressor = SlidingWindowCompressor(2_000)
    history = long_history(0)
    state: CompressionState | None = None
    before: list[Message] = []
    cuts = steps = 0
    for number in range(120):
        history += turn((call(f"c{number}", page=number), f"result {number}: " + "some words of it " * 8))
        made = compress(compressor, history, counter, state=state)
        assert made.tokens_after <= 2_000
        if made.cut:
            cuts += 1
            assert made.stable == 1
        else:
            steps += 1
            assert [id(message) for message in made.messages[: len(before)]] == [id(message) for message in before]
        state, before = made.state, list(made.messages)
    assert 3 <= cuts <= 12
    assert steps > 8 * cuts


def test_a_state_that_went_through_json_gives_the_same_request_in_another_process() -> None:
    # T109
    compressor = TokenBudgetCompressor(1_500)
    history = long_history(40)
    made = compress(compressor, history, counter)
    assert made.cut
    stored = json.loads(json.dumps(made.state.dump()))
    assert CompressionState.load(stored) == made.state
    copies = [Message.model_validate_json(message.model_dump_json()) for message in history]
    copies += long_history(2)[1:]
    again = compress(compressor, copies, counter, state=CompressionState.load(stored))
    assert not again.cut
    assert list(again.messages[: len(made.messages)]) == list(made.messages)


def test_the_state_names_what_was_folded() -> None:
    # L125
    history = long_history(40)
    made = compress(SlidingWindowCompressor(1_500), history, counter)
    kept = {place for place, message in enumerate(history) if any(message is one for one in made.messages)}
    assert set(made.state.left_out) == set(range(len(history))) - kept
    assert made.dropped == len(made.state.left_out)
    assert made.state.summary == made.messages[1].text
    assert len(json.dumps(made.state.dump())) < 200 + len(made.state.summary) * 1.2


def test_the_state_of_another_history_is_not_used() -> None:
    made = compress(SlidingWindowCompressor(1_500), long_history(40), counter)
    short = long_history(3)
    assert compress(SlidingWindowCompressor(1_500), short, counter, state=made.state).messages is short


def test_what_goes_with_the_messages_takes_of_their_room() -> None:
    history = long_history(40)
    made = compress(SlidingWindowCompressor(4_000), history, counter, overhead=2_500)
    assert made.tokens_after <= 1_500
    assert compress(SlidingWindowCompressor(4_000), history, counter, overhead=9_000).budget_unmet


def test_after_a_refusal_the_request_is_smaller_and_stays_so() -> None:
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


def test_a_budget_that_cannot_be_met_is_reported_with_the_smallest_request() -> None:
    # T100
    history = [Message.user("word " * 5_000), *long_history(5)[1:]]
    made = compress(SlidingWindowCompressor(1_000), history, counter)
    assert made.budget_unmet
    assert len(made.messages) == 4
    assert compress(SlidingWindowCompressor(1_000), long_history(5), counter).budget_unmet is False


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "the result is NoneType: return a list of messages"),
        ("text", "the result is str: return a list of messages"),
        ([1], "the result holds 1: return a list of messages"),
        (lambda messages: [*messages[::-1]], "keep the order"),
        (lambda messages: [*messages, Message.user("word " * 500)], "more than the"),
    ],
    ids=["nothing", "text", "numbers", "backwards", "larger"],
)
def test_a_result_that_is_none_is_thrown_away_and_reported(result: Any, reason: str) -> None:
    # T115
    history = long_history(30)
    made = compress(Giving(result), history, counter)
    assert reason in made.failed
    assert made.messages is history
    assert made.state == CompressionState()
    assert not made.cut
    assert made.budget_unmet


async def test_a_compressor_that_raises_leaves_the_history_as_it_was() -> None:
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
        made = await Compression(compressor, history, counter).result()
        assert made.failed == "KeyError: 'oops'"
        assert made.messages is history


def test_a_broken_pair_of_a_custom_compressor_is_repaired_and_reported() -> None:
    # T95
    history = long_history(30)
    made = compress(
        Giving(lambda messages: [messages[0], *messages[-4:], *[]][0:1] + list(messages[-3:])), history, counter
    )
    assert [id(message) for message in made.messages] == [id(history[0]), *(id(one) for one in history[-2:])]
    assert made.problems == ("message 1 answers the call 'call_28', which nothing before it makes",)
    assert made.cut


def test_the_task_and_pinned_messages_come_back_when_a_custom_compressor_loses_them() -> None:
    # T98
    history = long_history(30)
    history[5:5] = [Message.assistant("Keep this.")]
    made = compress(Giving(lambda messages: messages[-4:]), history, counter, pinned=frozenset({5}))
    assert [id(message) for message in made.messages[:2]] == [id(history[0]), id(history[5])]
    assert made.problems == ("message 0 of the history must stay", "message 5 of the history must stay")


def test_a_pinned_call_comes_with_its_results() -> None:
    history = long_history(30)
    made = compress(SlidingWindowCompressor(1_500), history, counter, pinned=frozenset({6}))
    assert any(message is history[5] for message in made.messages)
    assert any(message is history[6] for message in made.messages)
    lost = compress(Giving(lambda messages: [messages[0], *messages[-2:]]), history, counter, pinned=frozenset({6}))
    assert [message.role for message in lost.messages[:3]] == ["user", "assistant", "tool"]


def test_open_calls_come_back_when_a_custom_compressor_loses_them() -> None:
    # T97
    history = [*long_history(30), Message.assistant(tool_calls=[call("open")])]
    made = compress(Giving(lambda messages: list(messages[:1])), history, counter)
    assert made.messages[-1] is history[-1]


def test_a_custom_compressor_takes_ten_lines() -> None:
    class LastOnes:
        max_tokens = 1_000

        def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            kept = list(messages)
            while len(kept) > 1 and budget.count(*kept) > budget.target:
                kept.pop(0)
            return kept

    compressor: Compressor = LastOnes()
    history = long_history(30)
    made = compress(compressor, history, counter)
    assert made.messages[0] is history[0]
    assert made.tokens_after <= 1_000
    after = compress(compressor, [*history, Message.user("And now?")], counter, state=made.state)
    assert not after.cut
    assert list(after.messages[:-1]) == list(made.messages)


def test_a_message_with_images_that_was_written_anew_survives_json() -> None:
    parts = [
        TextPart(text="See."),
        ImagePart(data=b"\xff\xfe\xfb", media_type="image/png"),
        FilePart(url="https://x.org/a"),
    ]
    cut = CompressionState(3, (0, Message.user(parts), Message.tool("a", [parts[1]])))
    assert CompressionState.load(json.loads(json.dumps(cut.dump()))) == cut
