from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rxloop import SemanticCompressor, SlidingWindowCompressor, TokenBudgetCompressor
from rxloop.context import ChainedCompressor, TokenEstimator
from rxloop.context.compression import Compression, CompressionState
from rxloop.context.layout import find_problems
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Compressor
from rxloop.protocol.messages import ImagePart, Message, TextPart
from support.histories import budget, call, compress, every_compressor, long_history, turn

Make = Callable[[int], Compressor]
counter = TokenEstimator()


def sent(make: Make, messages: Sequence[Message], tokens: int, **more: object) -> list[Message]:
    return list(compress(make(tokens), messages, counter, **more).messages)  # pyright: ignore[reportArgumentType]


def own(messages: Sequence[Message], history: Sequence[Message]) -> list[int]:
    """The places of the messages that are of the history, as they are."""
    places = {id(message): place for place, message in enumerate(history)}
    return [places[id(message)] for message in messages if id(message) in places]


def said(messages: Sequence[Message]) -> str:
    return "\n".join(message.text for message in messages)


@every_compressor
def test_a_window_of_nothing_sends_the_task_a_summary_and_the_open_tail(make: Make) -> None:
    # T94
    history = [*long_history(8), Message.assistant(tool_calls=[call("open", page=9)])]
    made = sent(make, history, 0)
    assert own(made, history) == [0, len(history) - 1]
    assert len(made) == 3
    assert made[1].text.startswith("[Earlier messages are left out here.")


@every_compressor
def test_the_task_the_last_user_message_pinned_and_system_messages_are_always_sent(make: Make) -> None:
    # T98, L124
    history = long_history(20)
    history[7:7] = [Message.system("Be brief."), Message.assistant("Remember: never on a Sunday.")]
    history[15:15] = [Message.user("Only this year's orders.")]
    places = own(sent(make, history, 400, pinned=frozenset({8})), history)
    assert {0, 7, 8, 15} <= set(places)
    assert places == sorted(places)


@every_compressor
def test_one_huge_result_is_shortened_with_a_marker_and_its_call_is_left_alone(make: Make) -> None:
    # T102
    output = "\n".join(f"row {number}: ticket T-{number} is open" for number in range(6_000))
    history = [Message.user("Which ticket is the last?"), *turn((call("big", query="select *"), output))]
    assert counter.count(history) > 50_000
    made = compress(make(8_000), history, counter)
    assert made.tokens_after <= 8_000
    assert not made.budget_unmet
    result = made.messages[-1]
    assert result.tool_call_id == "big"
    assert made.messages[-2] is history[1]
    assert "characters left out ...]" in result.text
    assert result.text.startswith("row 0: ticket T-0 is open")
    assert result.text.endswith("row 5999: ticket T-5999 is open")
    assert made.shortened == 1


@every_compressor
def test_several_huge_results_of_one_message_share_the_room(make: Make) -> None:
    outputs = [(call(f"c{place}"), f"{place} " + "word " * 8_000) for place in range(3)]
    history = [Message.user("Go."), *turn(*outputs)]
    made = compress(make(3_000), history, counter)
    assert not made.budget_unmet
    sizes = [len(message.text) for message in made.messages if message.role == "tool"]
    assert len(sizes) == 3
    assert min(sizes) > 1_000


@every_compressor
def test_facts_of_the_first_summary_are_in_the_second_and_there_is_one_summary(make: Make) -> None:
    # T103
    history = long_history(12)
    history[3:3] = [Message.assistant("The warehouse code is WH-7781."), Message.user("Good. Go on.")]
    first = compress(make(1_000), history, counter)
    assert "warehouse" in said(first.messages)
    assert "WH-7781" in said(first.messages)
    later = [*history, *long_history(30)[1:]]
    second = compress(make(1_000), later, counter, state=first.state)
    assert second.cut
    assert "warehouse" in said(second.messages)
    assert "WH-7781" in said(second.messages)
    assert "ORD-9000" in second.state.summary
    assert sum(message.text.startswith("[Earlier") for message in second.messages) == 1
    assert second.state.summary.count("[Earlier") == 1


@every_compressor
def test_with_nothing_left_but_the_summary_nothing_is_done(make: Make) -> None:
    # T104
    history = [*long_history(10), Message.assistant("Nearly there."), Message.user("word " * 3_000)]
    first = compress(make(1_000), history, counter)
    again = compress(make(1_000), history, counter, state=first.state)
    assert first.budget_unmet
    assert again.budget_unmet
    assert not again.cut
    assert [id(message) for message in again.messages] == [id(message) for message in first.messages]


@every_compressor
def test_messages_with_reasoning_are_kept_byte_for_byte_or_go(make: Make) -> None:
    # T112
    history = [Message.user("Go.")]
    for number in range(20):
        history += turn((call(f"c{number}"), f"result {number} " * 60), reasoning=f"I think about {number}.")
    made = sent(make, history, 1_500)
    thoughts = [message for message in made if message.role == "assistant"]
    assert thoughts
    assert all(any(message is one for one in history) for message in thoughts)
    assert find_problems(made) == []


@every_compressor
def test_what_is_sent_is_the_same_for_the_same_history_in_any_order_of_runs(make: Make) -> None:
    compressor = make(1_200)
    one, two = long_history(30), long_history(25, size=90)
    alone = compress(make(1_200), one, counter).messages
    compress(compressor, two, counter)
    assert compress(compressor, one, counter).messages == alone


@every_compressor
def test_a_cut_goes_down_to_the_low_mark(make: Make) -> None:
    history = long_history(60)
    made = compress(make(3_000), history, counter)
    assert made.tokens_after <= 0.65 * 3_000


def test_the_window_holds_the_newest_blocks() -> None:
    history = long_history(40)
    places = own(sent(SlidingWindowCompressor, history, 2_000), history)
    assert places[0] == 0
    assert places[1:] == list(range(places[1], len(history)))
    assert len(places) > 5


def test_old_results_go_before_the_calls_and_repeated_ones_before_all() -> None:
    history = [Message.user("Watch the queue.")]
    for number in range(12):
        history += turn((call(f"c{number}", page=number), "the queue is empty and all is quiet today " * 12))
    made = sent(TokenBudgetCompressor, history, 1_300)
    texts = [message.text for message in made if message.role == "tool"]
    assert texts[0] == "[left out: a later result says the same]"
    assert texts[-1] == history[-1].text
    assert len(texts) == 12


def test_the_middle_of_long_results_goes_before_whole_results() -> None:
    history = long_history(6, size=300)
    # Room for all results when they are short.
    made = [message for message in sent(TokenBudgetCompressor, history, 2_500) if message.role == "tool"]
    assert len(made) == 6
    assert "characters left out" in made[0].text
    assert "ORD-9000" in made[0].text
    assert made[-1].text == history[-1].text


def test_without_vectors_the_words_of_the_goal_decide() -> None:
    # T111
    history = _errands()
    by_words = sent(lambda tokens: SemanticCompressor(tokens, relevance=3.0), history, 280)
    assert any(message is history[2] for message in by_words)
    by_age = sent(lambda tokens: SemanticCompressor(tokens, relevance=0.0), history, 280)
    assert not any(message is history[2] for message in by_age)


def test_what_was_chosen_stays_in_order() -> None:
    # T111
    history = long_history(40)
    places = own(sent(SemanticCompressor, history, 2_000), history)
    assert places == sorted(places)
    assert len(places) > 5


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


async def test_with_vectors_the_block_that_means_the_goal_outranks_the_others() -> None:
    # T111
    asked: list[str] = []

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        asked.extend(texts)
        return [[1.0, 0.1] if "boiler" in text else [0.1, 1.0] for text in texts]

    history = _errands()
    compressor = SemanticCompressor(280, relevance=3.0, embed=embed)
    made = await Compression(compressor, history, counter).result()
    assert history[2] in made.messages
    once = len(asked)
    await Compression(compressor, history, counter).result()
    assert len(asked) == once == len(set(asked))


async def test_an_embedder_that_fails_leaves_it_to_the_words(caplog: pytest.LogCaptureFixture) -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("no route to host")

    history = _errands()
    made = await Compression(SemanticCompressor(280, embed=embed), history, counter).result()
    by_words = await Compression(SemanticCompressor(280), history, counter).result()
    assert made.messages == by_words.messages
    assert "falling back to BM25" in caplog.text


def test_a_chain_stops_as_soon_as_the_budget_is_met() -> None:
    asked: list[int] = []

    class Remembering(SlidingWindowCompressor):
        def compress(self, messages, budget):  # pyright: ignore[reportIncompatibleMethodOverride, reportUnknownParameterType, reportMissingParameterType]
            asked.append(len(messages))
            return super().compress(messages, budget)

    history = long_history(40)
    compress(ChainedCompressor(TokenBudgetCompressor(2_000), Remembering(2_000)), history, counter)
    assert asked == []
    compress(ChainedCompressor(Idle(), Remembering(2_000)), history, counter)
    assert asked == [len(history)]


class Idle:
    max_tokens = 2_000

    def compress(self, messages, budget):
        return messages


async def test_a_chain_waits_where_one_of_it_does() -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    history = long_history(40)
    chain = ChainedCompressor(Idle(), SemanticCompressor(2_000, embed=embed), SlidingWindowCompressor(1_900))
    assert chain.max_tokens == 1_900
    made = await Compression(chain, history, counter).result()
    assert made.failed == ""
    assert made.tokens_after <= 1_900


def test_a_chain_has_one_summary_that_covers_what_all_of_it_left_out() -> None:
    class Forgetful:
        max_tokens = 2_000

        def compress(self, messages, budget):
            return [messages[0], Message.user("[Earlier: nothing of note]"), *messages[21:]]

    history = long_history(60)
    history[3:3] = [Message.assistant("The warehouse code is WH-7781.")]
    made = compress(ChainedCompressor(Forgetful(), SlidingWindowCompressor(2_000)), history, counter)
    assert [message.text[:8] for message in made.messages if message.role == "user"][1:] == ["[Earlier"]
    assert "WH-7781" in made.state.summary


@pytest.mark.parametrize("wrong", [{"max_tokens": -1}, {"low": 0}, {"low": 0.9, "high": 0.8}, {"high": 1.2}], ids=str)
def test_impossible_marks_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        SlidingWindowCompressor(**{"max_tokens": 1_000, **wrong})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="at least one compressor"):
        ChainedCompressor()


def test_a_compressor_can_be_used_by_itself() -> None:
    history = long_history(40)
    made = SlidingWindowCompressor(2_000).compress(history, budget(history, 2_000, 1_200))
    assert counter.count(made) <= 1_300
    assert CompressionState().messages(history) is history


def pictures(number: int) -> list[Message]:
    image = ImagePart(data=bytes([number]), media_type="image/png")
    first, _ = turn((call(f"c{number}", page=number), ""))
    return [first, Message.tool(f"c{number}", [TextPart(text="[image/png, 1 bytes]"), image])]


def test_old_images_go_before_what_was_called_and_a_word_stays_for_each() -> None:
    history = [Message.user("Which page has a cat?"), *(each for n in range(8) for each in pictures(n))]
    made = sent(TokenBudgetCompressor, history, 5_000)
    kept = [message for message in made if message.role == "tool"]
    assert len(kept) == 8
    assert [bool(message.media) for message in kept] == sorted(bool(message.media) for message in kept)
    assert {message.text for message in kept} == {"[image/png, 1 bytes]"}
    assert not kept[0].media
    assert kept[-1] is history[-1]


@every_compressor
def test_the_images_of_the_newest_message_go_where_there_is_no_room_for_them(make: Make) -> None:
    image = ImagePart(data=b"x", media_type="image/png")
    first, _ = turn((call("look"), ""))
    history = [Message.user("Go."), first, Message.tool("look", [TextPart(text="See."), *[image] * 20])]
    made = compress(make(2_000), history, counter)
    assert not made.budget_unmet
    assert not made.messages[-1].media
    assert "[image/png, 1 bytes]" in made.messages[-1].text
