from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rxloop import SemanticCompressor, SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context import ChainedCompressor, TokenEstimator, make_compressor
from rxloop.context.compression import Compression, CompressionState
from rxloop.context.layout import find_problems
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Compressor
from rxloop.protocol.messages import ImagePart, Message, TextPart, ToolCall
from support.histories import budget, call, compress, every_compressor, long_history, turn

Make = Callable[[int], Compressor]
counter = TokenEstimator()


def send(make: Make, messages: Sequence[Message], tokens: int, **more: object) -> list[Message]:
    return list(compress(make(tokens), messages, counter, **more).messages)  # pyright: ignore[reportArgumentType]


def find_own_indexes(messages: Sequence[Message], history: Sequence[Message]) -> list[int]:
    """Return the indexes of unchanged messages in the history."""
    indexes = {id(message): index for index, message in enumerate(history)}
    return [indexes[id(message)] for message in messages if id(message) in indexes]


def join_text(messages: Sequence[Message]) -> str:
    return "\n".join(message.text for message in messages)


@every_compressor
def test_empty_window_sends_the_task_a_summary_and_the_open_tail(make: Make) -> None:
    # T94
    history = [*long_history(8), Message.assistant(tool_calls=[call("open", page=9)])]
    result = send(make, history, 0)
    assert find_own_indexes(result, history) == [0, len(history) - 1]
    assert len(result) == 3
    assert result[1].text.startswith("[Earlier messages are left out here.")


@every_compressor
def test_task_last_user_message_pinned_and_system_messages_are_always_sent(make: Make) -> None:
    # T98, L124
    history = long_history(20)
    history[7:7] = [Message.system("Be brief."), Message.assistant("Remember: never on a Sunday.")]
    history[15:15] = [Message.user("Only this year's orders.")]
    indexes = find_own_indexes(send(make, history, 400, pinned=frozenset({8})), history)
    assert {0, 7, 8, 15} <= set(indexes)
    assert indexes == sorted(indexes)


@every_compressor
def test_huge_result_is_shortened_with_a_marker_and_its_call_is_unchanged(make: Make) -> None:
    # T102
    output = "\n".join(f"row {number}: ticket T-{number} is open" for number in range(6_000))
    history = [Message.user("Which ticket is the last?"), *turn((call("big", query="select *"), output))]
    assert counter.count(history) > 50_000
    result = compress(make(8_000), history, counter)
    assert result.tokens_after <= 8_000
    assert not result.budget_unmet
    message = result.messages[-1]
    assert message.tool_call_id == "big"
    assert result.messages[-2] is history[1]
    assert "characters left out ...]" in message.text
    assert message.text.startswith("row 0: ticket T-0 is open")
    assert message.text.endswith("row 5999: ticket T-5999 is open")
    assert result.shortened == 1


@every_compressor
def test_huge_results_of_one_message_share_the_budget(make: Make) -> None:
    outputs = [(call(f"c{index}"), f"{index} " + "word " * 8_000) for index in range(3)]
    history = [Message.user("Go."), *turn(*outputs)]
    result = compress(make(3_000), history, counter)
    assert not result.budget_unmet
    sizes = [len(message.text) for message in result.messages if message.role == "tool"]
    assert len(sizes) == 3
    assert min(sizes) > 1_000


@every_compressor
def test_second_summary_replaces_the_first_and_keeps_its_facts(make: Make) -> None:
    # T103
    history = long_history(12)
    history[3:3] = [Message.assistant("The warehouse code is WH-7781."), Message.user("Good. Go on.")]
    first = compress(make(1_000), history, counter)
    assert "warehouse" in join_text(first.messages)
    assert "WH-7781" in join_text(first.messages)
    later = [*history, *long_history(30)[1:]]
    second = compress(make(1_000), later, counter, state=first.state)
    assert second.cut
    assert "warehouse" in join_text(second.messages)
    assert "WH-7781" in join_text(second.messages)
    assert "ORD-9000" in second.state.summary
    assert sum(message.text.startswith("[Earlier") for message in second.messages) == 1
    assert second.state.summary.count("[Earlier") == 1


@every_compressor
def test_nothing_is_compressed_when_only_the_summary_is_left(make: Make) -> None:
    # T104
    history = [*long_history(10), Message.assistant("Nearly there."), Message.user("word " * 3_000)]
    first = compress(make(1_000), history, counter)
    repeated = compress(make(1_000), history, counter, state=first.state)
    assert first.budget_unmet
    assert repeated.budget_unmet
    assert not repeated.cut
    assert [id(message) for message in repeated.messages] == [id(message) for message in first.messages]


@every_compressor
def test_messages_with_reasoning_are_kept_unchanged_or_removed(make: Make) -> None:
    # T112
    history = [Message.user("Go.")]
    for number in range(20):
        history += turn((call(f"c{number}"), f"result {number} " * 60), reasoning=f"I think about {number}.")
    result = send(make, history, 1_500)
    thoughts = [message for message in result if message.role == "assistant"]
    assert thoughts
    assert all(any(message is one for one in history) for message in thoughts)
    assert find_problems(result) == []


@every_compressor
def test_request_does_not_depend_on_other_histories(make: Make) -> None:
    compressor = make(1_200)
    one, two = long_history(30), long_history(25, size=90)
    alone = compress(make(1_200), one, counter).messages
    compress(compressor, two, counter)
    assert compress(compressor, one, counter).messages == alone


@every_compressor
def test_compression_reaches_the_low_watermark(make: Make) -> None:
    history = long_history(60)
    result = compress(make(3_000), history, counter)
    assert result.tokens_after <= 0.65 * 3_000


def test_window_contains_the_newest_blocks() -> None:
    history = long_history(40)
    indexes = find_own_indexes(send(SlidingWindowCompressor, history, 2_000), history)
    assert indexes[0] == 0
    assert indexes[1:] == list(range(indexes[1], len(history)))
    assert len(indexes) > 5


def test_repeated_results_are_removed_first() -> None:
    history = [Message.user("Watch the queue.")]
    for number in range(12):
        history += turn((call(f"c{number}", page=number), "the queue is empty and all is quiet today " * 12))
    result = send(TokenBudgetCompressor, history, 1_300)
    texts = [message.text for message in result if message.role == "tool"]
    assert texts[0] == "[left out: a later result says the same]"
    assert texts[-1] == history[-1].text
    assert len(texts) == 12


def test_long_results_are_shortened_before_results_are_removed() -> None:
    history = long_history(6, size=300)
    # All results fit after they are shortened.
    result = [message for message in send(TokenBudgetCompressor, history, 2_500) if message.role == "tool"]
    assert len(result) == 6
    assert "characters left out" in result[0].text
    assert "ORD-9000" in result[0].text
    assert result[-1].text == history[-1].text


def test_words_of_the_goal_decide_without_an_embedder() -> None:
    # T111
    history = _errands()
    by_words = send(lambda tokens: SemanticCompressor(tokens, relevance=3.0), history, 280)
    assert any(message is history[2] for message in by_words)
    by_age = send(lambda tokens: SemanticCompressor(tokens, relevance=0.0), history, 280)
    assert not any(message is history[2] for message in by_age)


def test_words_of_the_newest_question_decide_after_later_iterations() -> None:
    history = _errands()
    history[0] = Message.user("Write the shopping list.")
    history[-1] = Message.user("Which model is the boiler in the cellar?")
    for number in range(2):
        call = ToolCall(id=f"c{number}", name="look", arguments={"page": number})
        history += [Message.assistant("", tool_calls=[call]), Message.tool(call.id, "Nothing.")]
    messages = send(SemanticCompressor, history, 320)
    assert any(message is history[2] for message in messages)


def test_selected_messages_keep_their_order() -> None:
    # T111
    history = long_history(40)
    indexes = find_own_indexes(send(SemanticCompressor, history, 2_000), history)
    assert indexes == sorted(indexes)
    assert len(indexes) > 5


def _errands() -> list[Message]:
    history = [Message.user("Who repairs the boiler in the cellar?"), Message.assistant("Let me see what I know.")]
    history.append(
        Message.assistant(
            "The boiler in the cellar leaks again, says the neighbour from below, and its model is HX-90."
        )
    )
    history += [
        Message.assistant(f"Bread, milk and apples were bought on day {number}, as always in spring.")
        for number in range(14)
    ]
    return [*history, Message.user("Go on.")]


async def test_block_similar_to_the_goal_ranks_first_with_an_embedder() -> None:
    # T111
    calls: list[str] = []

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        calls.extend(texts)
        return [[1.0, 0.1] if "boiler" in text else [0.1, 1.0] for text in texts]

    history = _errands()
    compressor = SemanticCompressor(280, relevance=3.0, embed=embed)
    result = await Compression(compressor, history, counter).result()
    assert history[2] in result.messages
    once = len(calls)
    await Compression(compressor, history, counter).result()
    assert len(calls) == once == len(set(calls))


@pytest.mark.parametrize("error", [OSError("no route to host"), asyncio.CancelledError()])
async def test_words_decide_when_the_embedder_fails(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        raise error

    history = _errands()
    result = await Compression(SemanticCompressor(280, embed=embed), history, counter).result()
    by_words = await Compression(SemanticCompressor(280), history, counter).result()
    assert result.messages == by_words.messages
    assert "falling back to BM25" in caplog.text


def test_chain_stops_when_the_budget_is_met() -> None:
    calls: list[int] = []

    class RecordingCompressor(SlidingWindowCompressor):
        def compress(self, messages, budget):  # pyright: ignore[reportIncompatibleMethodOverride, reportUnknownParameterType, reportMissingParameterType]
            calls.append(len(messages))
            return super().compress(messages, budget)

    history = long_history(40)
    compress(ChainedCompressor(TokenBudgetCompressor(2_000), RecordingCompressor(2_000)), history, counter)
    assert calls == []
    compress(ChainedCompressor(IdleCompressor(), RecordingCompressor(2_000)), history, counter)
    assert calls == [len(history)]


class IdleCompressor:
    max_tokens = 2_000

    def compress(self, messages, budget):
        return messages


async def test_chain_awaits_async_compressors() -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    history = long_history(40)
    chain = ChainedCompressor(IdleCompressor(), SemanticCompressor(2_000, embed=embed), SlidingWindowCompressor(1_900))
    assert chain.max_tokens == 1_900
    result = await Compression(chain, history, counter).result()
    assert result.failed == ""
    assert result.tokens_after <= 1_900


def test_chain_has_one_summary_of_everything_omitted() -> None:
    class ForgetfulCompressor:
        max_tokens = 2_000

        def compress(self, messages, budget):
            return [messages[0], Message.user("[Earlier: nothing of note]"), *messages[21:]]

    history = long_history(60)
    history[3:3] = [Message.assistant("The warehouse code is WH-7781.")]
    result = compress(ChainedCompressor(ForgetfulCompressor(), SlidingWindowCompressor(2_000)), history, counter)
    assert [message.text[:8] for message in result.messages if message.role == "user"][1:] == ["[Earlier"]
    assert "WH-7781" in result.state.summary


@pytest.mark.parametrize("wrong", [{"max_tokens": -1}, {"low": 0}, {"low": 0.9, "high": 0.8}, {"high": 1.2}], ids=str)
def test_invalid_watermarks_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        SlidingWindowCompressor(**{"max_tokens": 1_000, **wrong})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="at least one compressor"):
        ChainedCompressor()


def test_compressor_can_be_used_alone() -> None:
    history = long_history(40)
    result = SlidingWindowCompressor(2_000).compress(history, budget(history, 2_000, 1_200))
    assert counter.count(result) <= 1_300
    assert CompressionState().messages(history) is history


def pictures(number: int) -> list[Message]:
    image = ImagePart(data=bytes([number]), media_type="image/png")
    first, _ = turn((call(f"c{number}", page=number), ""))
    return [first, Message.tool(f"c{number}", [TextPart(text="[image/png, 1 bytes]"), image])]


def test_old_images_are_removed_before_calls_and_leave_placeholders() -> None:
    history = [Message.user("Which page has a cat?"), *(each for n in range(8) for each in pictures(n))]
    result = send(TokenBudgetCompressor, history, 5_000)
    kept = [message for message in result if message.role == "tool"]
    assert len(kept) == 8
    assert [bool(message.media) for message in kept] == sorted(bool(message.media) for message in kept)
    assert {message.text for message in kept} == {"[image/png, 1 bytes]"}
    assert not kept[0].media
    assert kept[-1] is history[-1]


@every_compressor
def test_images_of_the_newest_message_are_removed_if_they_exceed_the_budget(make: Make) -> None:
    image = ImagePart(data=b"x", media_type="image/png")
    first, _ = turn((call("look"), ""))
    history = [Message.user("Go."), first, Message.tool("look", [TextPart(text="See."), *[image] * 20])]
    result = compress(make(2_000), history, counter)
    assert not result.budget_unmet
    assert not result.messages[-1].media
    assert "[image/png, 1 bytes]" in result.messages[-1].text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sliding_window", SlidingWindowCompressor),
        ("semantic", SemanticCompressor),
        ("token_budget", TokenBudgetCompressor),
    ],
)
def test_compressor_is_created_from_its_name(name: str, kind: type[Any]) -> None:
    compressor: Any = make_compressor(name, max_tokens=60_000, low=0.5)
    assert type(compressor) is kind
    assert (compressor.max_tokens, compressor.low) == (60_000, 0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("window", {"max_tokens": 1}, "name must be one of sliding_window, semantic, token_budget, got 'window'"),
        ("semantic", {}, "options of the compressor 'semantic' are invalid: .*max_tokens"),
        ("semantic", {"max_tokens": 9, "size": 1}, "options of the compressor 'semantic' are invalid: .*'size'"),
        ("sliding_window", {}, "requires max_tokens, max_messages or both"),
        ("token_budget", {"max_tokens": -1}, "max_tokens must be an integer of at least 0, got -1"),
    ],
)
def test_invalid_compressor_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_compressor(name, **options)
