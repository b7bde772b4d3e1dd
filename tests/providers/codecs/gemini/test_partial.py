"""Arguments that stream by their paths, as JSON."""

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
# No empty list or object: there is no path into one.
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def path(steps: tuple[str | int, ...]) -> str:
    quoted = (f"[{step}]" if isinstance(step, int) else f"['{_escaped(step)}']" for step in steps)
    return "$" + "".join(quoted)


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")


def pieces(value: Any, steps: tuple[str | int, ...] = ()) -> list[dict[str, Any]]:
    """The pieces that a value comes in: texts in two."""
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
def test_the_pieces_of_any_arguments_add_up_to_them(arguments: dict[str, Any]) -> None:
    written = PartialArguments()
    text = "".join(map(written.feed, pieces(arguments))) + written.close()
    assert orjson.loads(text) == arguments


def test_a_text_that_is_never_ended_is_ended_with_the_arguments() -> None:
    written = PartialArguments()
    begun = written.feed({"jsonPath": "$.a[0].b", "stringValue": 'x"', "willContinue": True})
    assert begun == '{"a":[{"b":"x\\"'
    assert written.close() == '"}]}'


def test_a_piece_that_says_nothing_adds_nothing() -> None:
    assert PartialArguments().feed({"jsonPath": "$.a", "willContinue": True}) == ""


@pytest.mark.parametrize("where", [None, 7, "", "a", "$", "$[0]", "$.a[x]", "$..a", "$.a["])
def test_a_path_that_is_none_is_refused(where: Any) -> None:
    with pytest.raises(ProviderProtocolError):
        PartialArguments().feed({"jsonPath": where, "numberValue": 1})


@pytest.mark.parametrize("second", ["$.a", "$.a.c", "$.b[1]", "$.b[0]"])
def test_what_was_left_is_not_gone_back_to(second: str) -> None:
    written = PartialArguments()
    for where in ("$.a.b", "$.b[0]", "$.c"):
        written.feed({"jsonPath": where, "numberValue": 1})
    with pytest.raises(ProviderProtocolError):
        written.feed({"jsonPath": second, "numberValue": 1})


def test_no_path_is_too_deep() -> None:
    with pytest.raises(OutOfBounds):
        PartialArguments().feed({"jsonPath": "$" + ".a" * 200, "numberValue": 1})
