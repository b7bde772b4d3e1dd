"""Stems and words of texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.memory.words import STOP_WORDS, find_stem, find_words


@pytest.mark.parametrize(
    ("forms", "stem"),
    [
        ("hike hikes hiking hiked", "hik"),
        ("run ran running runs", "run"),
        ("city cities", "citi"),
        ("paint painting painted painter", "paint"),
        ("go went gone going", "go"),
        ("movie movies film films", "film"),
        ("photograph photographs", "photograph"),
        ("bus", "bus"),
        ("glass", "glass"),
        ("decorate decorated decorating", "decorat"),
        ("organization organize", "organiz"),
    ],
)
def test_forms_of_a_word_have_the_same_stem(forms: str, stem: str) -> None:
    assert {find_stem(form) for form in forms.split()} == {stem}


@pytest.mark.parametrize("word", ["ox", "its", "Ärger", "größe", "дома"])
def test_short_and_foreign_words_are_unchanged(word: str) -> None:
    assert find_stem(word) == word


def test_stop_words_are_omitted() -> None:
    assert find_words(" ".join(sorted(STOP_WORDS))) == []


def test_characters_of_languages_without_spaces_are_returned_in_pairs() -> None:
    assert find_words("東京都 猫") == ["東京", "京都", "猫"]


def test_latin_word_inside_a_text_without_spaces_is_a_word() -> None:
    assert find_words("私はrxloopを使う") == ["私は", "rxloop", "を使", "使う"]


def test_thai_text_is_returned_in_pairs() -> None:
    assert "ไท" in find_words("ภาษาไทย")


def test_word_of_hindi_is_not_split_at_its_vowel_signs() -> None:
    assert find_words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


def test_encodings_of_the_same_letter_are_the_same_word() -> None:
    assert find_words("cafe\u0301 \uff32\uff38") == find_words("caf\u00e9 rx") == ["caf\u00e9", "rx"]


def test_case_does_not_matter() -> None:
    assert find_words("STRASSE Straße OSLO") == ["strass", "strass", "oslo"]


@given(st.text())
def test_words_are_the_same_after_any_normalisation(text: str) -> None:
    words = find_words(text)
    assert all(words)
    assert words == find_words(text)
