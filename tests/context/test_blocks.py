from __future__ import annotations

from rxloop.context.layout import find_problems, repair_messages, split_blocks
from rxloop.protocol.messages import Message
from support.histories import call, long_history, turn


def test_calls_of_a_message_and_their_results_are_one_block() -> None:
    # T95
    messages = [
        Message.user("Go."),
        *turn((call("a"), "1"), (call("b"), "2"), (call("c"), "3")),
        Message.assistant("x"),
    ]
    assert [list(block.places) for block in split_blocks(messages)] == [[0], [1, 2, 3, 4], [5]]


def test_results_in_another_order_belong_to_the_same_block() -> None:
    # T96
    first, one, two = turn((call("a"), "1"), (call("b"), "2"))
    messages = [Message.user("Go."), first, two, one, Message.user("And?")]
    assert [block.messages for block in split_blocks(messages)][1] == (first, two, one)
    assert find_problems(messages) == []
    assert repair_messages(messages) == messages


def test_ids_reused_in_the_next_message_are_valid() -> None:
    messages = [*turn((call("0"), "1")), *turn((call("0"), "2"))]
    assert find_problems(messages) == []


def test_block_with_pending_calls_is_open() -> None:
    first, one, _ = turn((call("a"), "1"), (call("b"), "2"))
    assert split_blocks([first, one])[0].open
    assert not split_blocks(turn((call("a"), "1")))[0].open


def test_result_without_a_call_is_reported_and_removed() -> None:
    messages = [Message.user("Go."), Message.tool("lost", "5"), Message.assistant("x")]
    assert find_problems(messages) == ["message 1 answers the call 'lost', which nothing before it makes"]
    assert repair_messages(messages) == [messages[0], messages[2]]


def test_duplicate_result_is_removed() -> None:
    messages = [*turn((call("a"), "1")), Message.tool("a", "2")]
    assert find_problems(messages) == ["message 2 answers the call 'a', which is answered already"]
    assert repair_messages(messages) == messages[:2]


def test_block_with_an_unanswered_call_is_removed_except_at_the_end() -> None:
    first, one, _ = turn((call("a"), "1"), (call("b"), "2"))
    middle = [first, one, Message.user("And?")]
    assert find_problems(middle) == ["the call 'b' of message 0 has no result"]
    assert repair_messages(middle) == [middle[2]]
    # T97
    assert repair_messages([first, one]) == [first, one]
    assert repair_messages([first, one], open_tail=False) == []
    assert find_problems([first, one], open_tail=False) == ["the call 'b' of message 0 has no result"]


def test_repair_returns_valid_messages_unchanged() -> None:
    messages = long_history(5)
    assert [id(message) for message in repair_messages(messages)] == [id(message) for message in messages]


def test_any_part_of_a_history_can_be_repaired() -> None:
    messages = long_history(6)
    for start in range(len(messages)):
        for stop in range(start, len(messages) + 1):
            assert find_problems(repair_messages(messages[start:stop])) == []
