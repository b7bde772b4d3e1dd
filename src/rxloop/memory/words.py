"""Words of notes and questions, reduced to their stems."""

from __future__ import annotations

import re
from functools import lru_cache
from unicodedata import normalize

_UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0eff\u1000-\u109f\u1780-\u17d3\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words, such as Chinese, Japanese and Thai."""

_MARKS = r"\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
"""Marks inside words, which are not letters for `re`: Latin, Hebrew, Arabic, and the scripts of India."""

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(rf"[{_UNSPACED}]+|(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")

_STOP_WORDS = """
a about after again all also am an and any are as at be because been before being between both but by can could d did do
does doing down during each few for from get got had has have having he hello her here hey hi him his how i if in into
is it its just like ll m many may me might more most much must my no nor not of off oh on only or other our out over own
re really s same shall she should so some such t than that the their them then there these they this those through to
too under until up us ve very was we were what when where which while who whom whose why will with would yeah yes you
your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Frequent English words, which do not distinguish notes."""

_IRREGULAR_FORMS = """
be was were been, become became, begin began begun, break broke broken, bring brought, build built, buy bought,
catch caught, choose chose chosen, come came, draw drew drawn, drink drank drunk, drive drove driven, eat ate eaten,
fall fell fallen, feel felt, fight fought, find found, fly flew flown, forget forgot forgotten, get got gotten,
give gave given, go went gone, grow grew grown, hear heard, hold held, keep kept, know knew known, leave left,
lose lost, make made, meet met, pay paid, ride rode ridden, run ran, say said, see saw seen, sell sold, send sent,
sing sang sung, sleep slept, speak spoke spoken, spend spent, stand stood, steal stole stolen, swim swam swum,
take took taken, teach taught, tell told, think thought, throw threw thrown, understand understood, wake woke woken,
wear wore worn, win won, write wrote written, child children kid kids, man men, woman women, person people, foot feet,
mouse mice, wife wives, life lives, photo photos picture pictures pic pics, film films movie movies, mother mom mum,
father dad
"""
_IRREGULAR = {form: forms.split()[0] for forms in _IRREGULAR_FORMS.split(",") for form in forms.split()}
"""First form by irregular form, and by common synonyms."""

_MIN_STEM = 3
_DERIVED = re.compile(rf"(?<=[a-z]{{{_MIN_STEM}}})(?:ation|ion|ement|ment|ness|er|or|ful|ive|ly|al)$")
"""Suffixes of words with similar meanings, such as "painter" and "paint"."""


def find_words(text: str) -> list[str]:
    """Return the stems of the words in a text, without stop words.

    Stems follow simplified rules of English (Porter, "An algorithm for suffix stripping", 1980). Words of other
    languages are mostly unchanged. Characters of languages without spaces are returned in pairs.
    """
    found: list[str] = []
    is_ascii = text.isascii()
    # The same letter may be encoded in several ways.
    words = _ASCII_WORD.findall(text.lower()) if is_ascii else _WORD.findall(normalize("NFKC", text).casefold())
    for word in words:
        if not is_ascii and _IS_UNSPACED.match(word):
            found += [word[index : index + 2] for index in range(max(1, len(word) - 1))]
        elif word not in STOP_WORDS:
            found.append(find_stem(word))
    return found


@lru_cache(maxsize=20_000)
def find_stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= _MIN_STEM or not word.isascii():
        return word
    if word.endswith("s") and not word.endswith(("ss", "us")):
        word = word[:-1]
    verb = word.removesuffix("ing").removesuffix("ed")
    if verb != word and any(vowel in verb for vowel in "aeiouy"):
        is_doubled = len(verb) > 2 and verb[-1] == verb[-2] and verb[-1] not in "lsz"
        word = verb[:-1] if is_doubled else verb
    word = _DERIVED.sub("", word)
    if word.endswith("y") and word[-2] not in "aeiou":
        word = word[:-1] + "i"
    return word.removesuffix("e") if len(word) > _MIN_STEM else word
