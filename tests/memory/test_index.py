"""Full-text index of notes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop.memory.index import NoteIndex

WORDS = ["harbour", "kitchen", "bicycle", "violin", "garden", "ferry", "novel", "lamp", "river", "castle"]


def make_index(*texts: str, conversation: str | None = None) -> NoteIndex:
    """Return an index of texts, each in a conversation of its own by default."""
    index = NoteIndex()
    for number, text in enumerate(texts):
        index.add(text, conversation=conversation or str(number))
    return index


def search(index: NoteIndex, question: str) -> list[int]:
    return [number for number, _ in index.search(question)]


def test_empty_index_has_no_matches() -> None:
    assert NoteIndex().search("harbour") == []


def test_index_without_notes_after_removal_has_no_matches() -> None:
    index = make_index("harbour")
    index.remove(0)
    assert index.search("harbour") == []
    assert len(index) == 0


def test_question_without_known_words_has_no_matches() -> None:
    assert make_index("harbour").search("kitchen") == []


def test_question_of_stop_words_has_no_matches() -> None:
    assert make_index("what was it").search("what was it") == []


def test_note_with_more_words_of_the_question_comes_first() -> None:
    index = make_index("harbour kitchen bicycle", "harbour lamp river", "violin garden ferry")
    assert search(index, "harbour kitchen?") == [0, 1]


def test_rare_word_weighs_more_than_a_frequent_one() -> None:
    index = make_index(*["harbour lamp"] * 9, "kitchen lamp")
    assert search(index, "harbour kitchen")[0] == 9


def test_newest_of_equal_notes_comes_first() -> None:
    assert search(make_index(*["harbour lamp"] * 5), "harbour") == [4, 3, 2, 1, 0]


def test_newest_of_many_equal_notes_are_found() -> None:
    index = make_index(*["harbour lamp"] * 5_000)
    found = search(index, "harbour")
    assert found == list(range(4_999, 4_999 - len(found), -1))


def test_neighbours_in_the_conversation_are_found() -> None:
    index = make_index("bicycle", "harbour", "kitchen", "garden", "ferry", "novel", "lamp", conversation="one")
    assert search(index, "harbour") == [1, 2, 0, 3, 4, 5]


def test_neighbours_in_another_conversation_are_not_found() -> None:
    assert search(make_index("bicycle", "harbour", "kitchen"), "harbour") == [1]


def test_notes_of_the_named_author_come_first() -> None:
    index = NoteIndex()
    for author in ("Ann", "Bob"):
        index.add("harbour lamp", conversation=author, author=author)
    assert search(index, "What did Ann say about the harbour?")[0] == 0


def test_naming_all_authors_prefers_none() -> None:
    index = NoteIndex()
    for author in ("Ann", "Bob"):
        index.add("harbour lamp", conversation=author, author=author)
    scores = dict(index.search("Did Ann and Bob see the harbour?"))
    assert scores[0] == scores[1]


def test_naming_a_part_of_an_author_prefers_their_notes() -> None:
    index = NoteIndex()
    for author in ("Ann Lee", "Bob Lee", "Ann Day"):
        index.add("harbour lamp", conversation=author, author=author)
    assert search(index, "What did Ann Lee say about the harbour?")[0] == 0
    scores = dict(index.search("What did Ann say about the harbour?"))
    assert scores[0] == scores[2] > scores[1]


def test_removed_note_is_not_found() -> None:
    index = make_index("harbour lamp", "harbour river")
    index.remove(1)
    assert search(index, "harbour") == [0]


def test_removing_a_note_twice_changes_nothing() -> None:
    index = make_index("harbour lamp", "harbour river")
    index.remove(1)
    index.remove(1)
    assert len(index) == 1
    assert search(index, "harbour") == [0]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join),
            st.sampled_from("ab"),
            st.sampled_from(["", "Ann", "Bob"]),
        ),
        max_size=25,
    ),
    st.data(),
)
def test_index_after_removals_equals_a_new_index(notes: list[tuple[str, str, str]], data: st.DataObject) -> None:
    removed = data.draw(st.sets(st.integers(0, len(notes) - 1))) if notes else set[int]()
    changed, new = NoteIndex(), NoteIndex()
    numbers: list[int] = []
    for number, (text, conversation, author) in enumerate(notes):
        changed.add(text, conversation=conversation, author=author)
        if number not in removed:
            new.add(text, conversation=conversation, author=author)
            numbers.append(number)
    for number in removed:
        changed.remove(number)
    for word in WORDS:
        question = f"What did Ann do at the {word}?"
        expected = [(numbers[number], round(score, 9)) for number, score in new.search(question)]
        assert [(number, round(score, 9)) for number, score in changed.search(question)] == expected


def count_calls(action: Callable[[], Any]) -> int:
    """Return the number of calls of Python functions and of functions in C."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def make_large_index(size: int) -> NoteIndex:
    """Return an index whose words have the frequencies of a natural language."""
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(5_000)]
    weights = [*accumulate(1 / rank for rank in range(1, 5_001))]
    index = NoteIndex()
    for number in range(size):
        index.add(" ".join(chance.choices(vocabulary, cum_weights=weights, k=6)), conversation=str(number // 20))
    return index


def test_search_cost_does_not_depend_on_the_number_of_notes() -> None:
    small, large = make_large_index(10_000), make_large_index(100_000)
    for question in ("word0 word1 word2 word3", "word9 word99 word999", "word2500"):
        cost = count_calls(lambda index=large, question=question: index.search(question))
        assert cost < 60_000
        assert cost < 2 * count_calls(lambda index=small, question=question: index.search(question)) + 10_000


def test_search_cost_of_a_long_question_is_limited() -> None:
    index = make_large_index(10_000)
    question = " ".join(f"word{number}" for number in range(5_000))
    assert count_calls(lambda: index.search(question)) < 80_000


def test_removal_cost_does_not_depend_on_the_number_of_notes() -> None:
    small, large = make_large_index(1_000), make_large_index(10_000)
    assert count_calls(lambda: large.remove(500)) < 2 * count_calls(lambda: small.remove(500)) + 50
