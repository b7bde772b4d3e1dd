"""Parsing of model replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.strategies.replies import (
    find_final_answer,
    find_labelled,
    find_number,
    find_word,
    parse_list,
    split_paragraphs,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So.\nAnswer: 42", "42"),
        ("So.\n**Answer:** 42", "42"),
        ("So.\n**Final answer**: `42`", "42"),
        ("## Answer\nNo.\nAnswer:\n42\nBecause.", "42"),
        ("answer = 42", "42"),
        ("Answer: 1\nNo, wait.\nAnswer: 2", "2"),
        ("It adds up. Answer: 4", "4"),
        ("Therefore the answer is 4.5.", "4.5"),
        ("The answer is: Oslo. It is the capital.", "Oslo"),
        (r"Hence $\boxed{24}$. The answer is above.", "24"),
        ("First this.\nThen that.\n**24**", "24"),
        ("Answer: St. Louis", "St. Louis"),
        ("Answer:", "Answer:"),
        ("", None),
        (" \n ", None),
        (r"\boxed{}", None),
    ],
)
def test_final_answer_is_found(text: str, answer: str | None) -> None:
    assert find_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("1. add\n2. multiply", ["add", "multiply"]),
        ("Here they are:\n\n1) add\n(2) multiply\n\nGood luck!", ["add", "multiply"]),
        ("- add\n* multiply\n• divide", ["add", "multiply", "divide"]),
        ("**1. add**\nStep 2: multiply", ["add", "multiply"]),
        ("add\nmultiply", ["add", "multiply"]),
        ("1. add\n2. add", ["add"]),
        ("1. 4 - 9 = -5 (left: -5 10 13)", ["4 - 9 = -5 (left: -5 10 13)"]),
        ("\n \n", []),
        ("1.\n2.", []),
    ],
)
def test_list_items_are_parsed(text: str, items: list[str]) -> None:
    assert parse_list(text) == items


@pytest.mark.parametrize(
    ("text", "labelled"),
    [
        ("Follow up: Who?", "Who?"),
        ("follow-up: Who?", "Who?"),
        ("> **Follow Up:** Who?", "Who?"),
        ("Follow up: Who?\nAnd when?", "Who?\nAnd when?"),
        ("I ask. Follow up: Who?", None),
        ("Nothing.", None),
    ],
)
def test_text_after_a_label_is_found(text: str, labelled: str | None) -> None:
    assert find_labelled(text, "follow up") == labelled


def test_word_after_a_label_is_found() -> None:
    assert find_word("I see.\n**Next:** *Continue*, for it is not done.", "next") == "continue"
    assert find_word("Next steps are clear.", "next") == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Score: 0.7", 0.7),
        ("Score: 7/10", 0.7),
        ("Score: 70%", 0.7),
        ("Score: 7 out of 10", 0.7),
        ("**Score:** .5, since 3 are left", 0.5),
        ("Score: 3/0", None),
        ("Score: high", None),
        ("between 1 and 2", None),
        ("none", None),
    ],
)
def test_number_after_a_label_is_found(text: str, value: float | None) -> None:
    assert find_number(text, "score") == (pytest.approx(value) if value is not None else None)


def test_text_is_split_into_paragraphs_or_lines() -> None:
    assert split_paragraphs("One.\nStill.\n\n \nTwo.") == ["One.\nStill.", "Two."]
    assert split_paragraphs("One.\nTwo.\n") == ["One.", "Two."]
    assert split_paragraphs("") == []


@given(st.text(alphabet="aA:=*_#-1.()\\{}boxed \n%/", max_size=60))
def test_parsers_accept_any_text(text: str) -> None:
    find_final_answer(text)
    parse_list(text)
    find_labelled(text, "a", "a a")
    find_number(text, "a")
    split_paragraphs(text)


SIZE = 200_000


@pytest.mark.parametrize("unit", ["\n", "#", "*", "_", ">", " ", "\r\n", "answer ", "answer is ", "1", "`", "- "])
def test_long_text_is_parsed_in_linear_time(unit: str) -> None:
    # With backtracking, each of these takes minutes.
    text = unit * (SIZE // len(unit)) + "!"
    assert find_labelled(text, "best") is None
    assert parse_list(text)
    assert find_final_answer(text)


def test_spaces_before_the_end_of_an_answer_are_searched_once() -> None:
    assert find_final_answer(f"The answer is x{' ' * SIZE}y") == "x y"
