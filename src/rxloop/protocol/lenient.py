"""Find JSON in a model's text: between sentences, in code fences, or with raw control characters in strings."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, NoReturn

import orjson

LONGEST = 2**20
"""Maximum number of characters to search, because the parser is slow."""
_BRACKET = re.compile(r"[\[{]")
_FLAT = re.compile(r"\[[^\[\]{}\"]*\]|\{[^\[\]{}\"':]*\}")
"""Brackets such as `[1]`, `[docs]` or `{x}`, which prose has as well. They hold no part of an object."""
_MAX_BRACKETS = 5_000
"""Maximum number of citations and similar brackets in an answer. With more, it is ambiguous."""
_CITATION = re.compile(r"\[\s*\d+\s*\]|\[\s+\]")
"""A citation or a box to tick, which prose has as well as JSON."""
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)")
_THOUGHT = re.compile(r"\s*<(think|thinking|thought|reasoning)>")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# `strict=False` takes control characters inside strings.
_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def unfence(text: str) -> str:
    """Return the body of the code fence if there is nothing else, or the text itself."""
    stripped = text.strip()
    head, newline, rest = stripped.partition("\n")
    label = head[3:].strip()
    is_fence = newline and head.startswith("```") and rest.endswith("```") and (not label or label.isalpha())
    return rest[:-3].strip() if is_fence else text


def find_json(text: str) -> str | None:
    """Return the only JSON value in the answer, or None if it is ambiguous.

    A byte order mark and reasoning in tags before the answer are ignored. A value in a code fence counts before the
    sentences around it. Elsewhere, only objects and arrays are found. Any other bracket that may belong to a JSON value
    makes the text ambiguous, because an incomplete value may contain a complete one. Citations such as `[1]` do not.
    """
    if len(text) > LONGEST:
        return None
    try:
        return _find(_after_thoughts(text.lstrip("\ufeff")))
    except (ValueError, RecursionError):
        return None


def _find(text: str) -> str | None:
    text = text.strip()
    if _is_value(text):
        return _strict(text)
    blocks, outside = _split_fences(text)
    values = [(label, body) for label, body in blocks if body and _is_value(body)]
    if len(blocks) > 1:
        # An example without a label may be any text, such as a number.
        values = [(label, body) for label, body in values if label or body[0] in "[{"]
    if not values:
        return _find_in_prose(text)
    value = values[0][1]
    is_only = len(values) == 1 and not any(label for label, body in blocks if body != value)
    return _strict(value) if is_only and _is_only_prose(outside) else None


def _after_thoughts(text: str) -> str:
    """Return the text after the reasoning that a model wrote before its answer."""
    opening = _THOUGHT.match(text)
    if opening is not None:
        return text.partition(f"</{opening[1]}>")[2]
    # Some templates end the prompt with the opening tag.
    return text.partition("</think>")[2] if "</think>" in text else text


def _split_fences(text: str) -> tuple[list[tuple[bool, str]], str]:
    """Return the bodies of the code fences, each with True if its label says JSON, and the text outside of them."""
    blocks: list[tuple[bool, str]] = []
    outside: list[str] = []
    body: list[str] = []
    fence, label = "", False
    for line in text.split("\n"):
        word = line.strip()
        if not fence and (opening := _FENCE.fullmatch(word)):
            fence, label, body = opening[1], opening[2].strip().lower().startswith("json"), []
        elif not fence:
            outside.append(line)
        elif word.startswith(fence) and not word.strip(fence[0]):
            blocks.append((label, "\n".join(body).strip()))
            fence = ""
        else:
            body.append(line)
    if fence:
        outside += body
    return blocks, "\n".join(outside)


def _is_only_prose(text: str) -> bool:
    """Return True if the answer has no JSON value except citations, and no bracket that may belong to one."""
    position = 0
    for _ in range(_MAX_BRACKETS):
        bracket = _BRACKET.search(text, position)
        if bracket is None:
            return True
        flat = _FLAT.match(text, bracket.start())
        if flat is None or (_is_value(flat[0]) and not _CITATION.fullmatch(flat[0])):
            return False
        position = flat.end()
    return False


def _find_in_prose(text: str) -> str | None:
    """Return the only object or array in the answer."""
    flats: list[str] = []
    position = 0
    while bracket := _BRACKET.search(text, position):
        begin = bracket.start()
        flat = _FLAT.match(text, begin)
        if flat is None:
            end = _decoder.raw_decode(text, begin)[1]
            value = text[begin:end]
            return _strict(value) if _is_only_prose(text[:begin] + text[end:]) else None
        flats.append(flat[0])
        if len(flats) > _MAX_BRACKETS:
            return None
        position = flat.end()
    values = list(islice((flat for flat in flats if _is_value(flat) and not _CITATION.fullmatch(flat)), 2))
    return _strict(values[0]) if len(values) == 1 else None


def _is_value(text: str) -> bool:
    """Return True if the string is one JSON value, perhaps with control characters in its strings."""
    try:
        return _decoder.raw_decode(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def is_json(text: str) -> bool:
    """Return True if the text is strict JSON."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _strict(text: str) -> str:
    """Return the text unchanged if it is strict JSON, so that numbers keep their digits."""
    if is_json(text):
        return text
    value: Any = json.loads(text, strict=False)
    strict = json.dumps(value, ensure_ascii=False)
    # Only control characters are corrected. Python 3.13 also reads what is nested too deeply for orjson.
    if not is_json(strict):
        raise ValueError("the value is nested too deeply")
    return strict
