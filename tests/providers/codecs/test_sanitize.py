from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.providers.codecs.markup import TailStripper, clean_name
from rxloop.providers.vendors import TEMPLATE_TOKENS
from support.processes.counters import measure_peak_memory

ANY_TEXT = st.lists(
    st.sampled_from((*TEMPLATE_TOKENS, "<", "<|", "[", "|>", "<|im_", "</", "\n", " ", "x")) | st.text(max_size=3),
    max_size=15,
).map("".join)
LONGEST = max(map(len, TEMPLATE_TOKENS))


def strip(*pieces: str) -> str:
    stripper = TailStripper(TEMPLATE_TOKENS)
    return "".join([stripper.feed(piece) for piece in pieces]) + stripper.finish()


@pytest.mark.parametrize("token", TEMPLATE_TOKENS)
def test_trailing_control_token_is_removed_at_any_read_boundaries(token: str) -> None:
    # L62
    text = f" Hello \n{token}"
    for cut in range(len(text) + 1):
        assert strip(text[:cut], text[cut:]) == " Hello \n"
    assert strip(*text) == " Hello \n"


@pytest.mark.parametrize("token", TEMPLATE_TOKENS)
def test_control_token_elsewhere_is_kept(token: str) -> None:
    # L62
    for text in (f"{token} is a token", f"a{token}b", f"a{token}\n", f"a{token}.", f"a{token[:-1]}"):
        assert strip(text) == strip(*text) == text


def test_several_trailing_control_tokens_are_removed() -> None:
    # L62
    assert strip("a<|im_end|>b", "<|eot_id|><|im_", "end|>", "</s>") == "a<|im_end|>b"


def test_whitespace_is_kept() -> None:
    # L61
    assert strip("  \n") == "  \n"
    assert strip(" \n<|im_end|>") == " \n"


@given(ANY_TEXT, st.lists(st.integers(0, 1000), max_size=8))
def test_only_trailing_tokens_are_removed_from_any_text(text: str, cuts: list[int]) -> None:
    # L62
    marks = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    expected = re.sub(rf"(?:{'|'.join(map(re.escape, TEMPLATE_TOKENS))})+\Z", "", text)
    assert strip(*(text[a:b] for a, b in pairwise(marks))) == expected


@given(ANY_TEXT)
def test_only_possible_control_tokens_are_held_back(text: str) -> None:
    stripper = TailStripper(TEMPLATE_TOKENS)
    out = ""
    for size, character in enumerate(text, 1):
        out += stripper.feed(character)
        held = text[len(out) : size]
        assert out + held == text[:size]
        rest = re.sub(rf"^(?:{'|'.join(map(re.escape, TEMPLATE_TOKENS))})+", "", held)
        assert len(rest) < LONGEST


@pytest.mark.parametrize(
    "name",
    [
        *("search", "search<|channel|>commentary", "search<|im_end|>", "search<|unknown|>json", "search.exec"),
        *("<|im_start|>search", "search\n", "search({", "<|channel|>search<|message|>{}", "sea<|call|>rch"),
    ],
)
def test_tool_name_loses_control_tokens_and_an_invalid_suffix(name: str) -> None:
    # L62, L63
    assert clean_name(name, {"search", "a.b"}, TEMPLATE_TOKENS) == "search"


@pytest.mark.parametrize("name", ["find.it", "search_2.x", "functions.search", ".search", "a.b.c", ""])
def test_unknown_tool_name_is_unchanged(name: str) -> None:
    # L63
    assert clean_name(name, {"search", "a.b"}, TEMPLATE_TOKENS) == name


def test_offered_tool_name_is_unchanged() -> None:
    # L63
    assert clean_name("search.v2", {"search", "search.v2"}, TEMPLATE_TOKENS) == "search.v2"


def test_repeated_stop_tokens_have_constant_cost() -> None:
    stripper = TailStripper(TEMPLATE_TOKENS)
    stripper.feed("a" + "<|im_end|>" * 20_000)

    def repeat() -> None:
        for _ in range(100):
            assert stripper.feed("<|im_end|>") == ""

    # The list of pending text may be reallocated once, but its items are never copied.
    assert measure_peak_memory(repeat) < 10 * 20_000
    assert measure_peak_memory(lambda: stripper.feed("<|im_end|>")) < 10_000
    assert stripper.feed("b") == "<|im_end|>" * 20_101 + "b"
