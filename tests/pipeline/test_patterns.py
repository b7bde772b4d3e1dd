"""Regular expressions of JSON Schemas."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.support.json_schema.patterns import MAX_STATES, Pattern, PatternTooLarge, compile_pattern, is_valid_pattern


class Steps:
    """Counter of steps."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, steps: int) -> None:
        self.count += steps


def search(pattern: str, text: str) -> bool:
    return Pattern(pattern).search(text, Steps())


def count_steps(pattern: str, text: str) -> int:
    steps = Steps()
    Pattern(pattern).search(text, steps)
    return steps.count


ATOMS = [
    *("a", "b", "ab", "[ab]", "[^a]", "[a-c]", ".", r"\d", r"\w", r"\W", r"\s", r"[\d_]", r"[^\w]", "1", "^", r"\b"),
    *(r"\.", r"\u0062", r"\x61", "(?:)", r"[\-a]", "[b-]", "-", " "),
]
groups = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{0}"])).map(
            lambda parts: f"({parts[0]}){parts[1]}"
        ),
    ),
    max_leaves=8,
)


@given(pattern=groups, text=st.text("abc1_ -.\né", max_size=8))
@settings(max_examples=500, deadline=None)
def test_search_agrees_with_the_standard_library(pattern: str, text: str) -> None:
    compiled = Pattern(pattern)
    first, second = Steps(), Steps()
    assert compiled.search(text, first) == (re.search(pattern, text) is not None)
    compiled.search(text, second)
    assert first.count == second.count


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("b$", "b\n", False),
        ("(?i)^straße$", "STRAßE", True),
        ("(?i:a)b", "AB", False),
        ("(?s)a.b", "a\nb", True),
        ("(?<year>x)(?P<month>y)", "xy", True),
        (r"^\p{Lu}\P{L}$", "A1", True),
        (r"^\w+$", "Łódź", True),
        (r"^[^]$", "\n", True),
        ("[]", "a", False),
        (r"^\ud83d\ude00$", "\U0001f600", True),
        (r"^[\u{1F600}-\U0001F602]$", "\U0001f601", True),
        ("^x{a}$", "x{a}", True),
        (r"^\/\_\cA$", "/_\x01", True),
        (r"^\A1\Z$", "1", True),
        (r"[\b]", "\b", True),
    ],
)
def test_syntax_of_several_dialects_is_supported(pattern: str, text: str, matches: bool) -> None:
    assert search(pattern, text) is matches


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>", "a++", "(?>a)", "(?x) a", "[[:alpha:]]", r"\p{Greek}"]
)
def test_unsupported_feature_is_valid_but_not_compiled(pattern: str) -> None:
    assert compile_pattern(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "*", "a**", "[a", "[z-a]", "a{2,1}", "\\", "^*", r"\u12", "(?<n", "(?y"]
)
def test_invalid_pattern_is_not_compiled(pattern: str) -> None:
    assert compile_pattern(pattern) is None
    assert not is_valid_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a{1,1000}){1,1000}", "(?:(?:){9999}){9999}", "a{99999999999999999999}"])
def test_pattern_with_too_many_states_is_rejected(pattern: str) -> None:
    with pytest.raises(PatternTooLarge, match=f"{MAX_STATES:,} states"):
        Pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 30_000 + "!"),
        ("(a|a)*b", "a" * 30_000),
        (r"(\w+\s?)*$", "a b " * 8_000 + "!"),
        (r"^(.|\n)*$", "abc\n" * 8_000),
        ("(?:a?){20}a{20}", "a" * 30_000),
    ],
)
def test_number_of_steps_is_linear(pattern: str, text: str) -> None:
    assert count_steps(pattern, text) < len(text)


def test_steps_of_a_large_automaton_are_counted() -> None:
    assert count_steps(".{0,2000}x.{0,2000}y", "ab" * 500) > 100_000


def test_search_stops_at_the_first_match() -> None:
    assert count_steps("a", "a" + "b" * 100) < 20
