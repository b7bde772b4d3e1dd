"""Tests of function arguments streamed by path."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import ProviderProtocolError
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.codecs.gemini.partial_arguments import PartialArguments

KEYS = st.text("ab.[]'\"\\ é", min_size=1, max_size=4)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=6))
# Empty lists and objects have no path.
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def path(steps: tuple[str | int, ...]) -> str:
    quoted = (f"[{step}]" if isinstance(step, int) else f"['{_escape(step)}']" for step in steps)
    return "$" + "".join(quoted)


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")


def pieces(value: Any, steps: tuple[str | int, ...] = ()) -> list[dict[str, Any]]:
    """Split a value into pieces."""
    if isinstance(value, dict):
        return [piece for name, inner in value.items() for piece in pieces(inner, (*steps, name))]
    if isinstance(value, list):
        return [piece for place, inner in enumerate(value) for piece in pieces(inner, (*steps, place))]
    where = {"jsonPath": path(steps)}
    if isinstance(value, str):
        half = len(value) // 2
        begun = {**where, "stringValue": value[:half], "willContinue": True}
        return [begun, {**where, "stringValue": value[half:]}]
    if value is None:
        return [{**where, "nullValue": "NULL_VALUE"}]
    return [{**where, "boolValue" if isinstance(value, bool) else "numberValue": value}]


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_pieces_of_any_arguments_are_joined(arguments: dict[str, Any]) -> None:
    written = PartialArguments()
    text = "".join(map(written.feed, pieces(arguments))) + written.close()
    assert orjson.loads(text) == arguments


def test_open_string_is_closed_with_the_arguments() -> None:
    written = PartialArguments()
    begun = written.feed({"jsonPath": "$.a[0].b", "stringValue": 'x"', "willContinue": True})
    assert begun == '{"a":[{"b":"x\\"'
    assert written.close() == '"}]}'


def test_piece_without_a_value_adds_nothing() -> None:
    assert PartialArguments().feed({"jsonPath": "$.a", "willContinue": True}) == ""


@pytest.mark.parametrize("where", [None, 7, "", "a", "$", "$[0]", "$.a[x]", "$..a", "$.a["])
def test_invalid_path_is_rejected(where: Any) -> None:
    with pytest.raises(ProviderProtocolError):
        PartialArguments().feed({"jsonPath": where, "numberValue": 1})


@pytest.mark.parametrize("second", ["$.a", "$.a.c", "$.b[1]", "$.b[0]"])
def test_path_to_an_earlier_value_is_rejected(second: str) -> None:
    written = PartialArguments()
    for where in ("$.a.b", "$.b[0]", "$.c"):
        written.feed({"jsonPath": where, "numberValue": 1})
    with pytest.raises(ProviderProtocolError):
        written.feed({"jsonPath": second, "numberValue": 1})


def test_too_deep_path_is_rejected() -> None:
    with pytest.raises(OutOfBounds):
        PartialArguments().feed({"jsonPath": "$" + ".a" * 200, "numberValue": 1})
