import math
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop.errors import ToolError
from rxloop.tools import ToolResult, encode_result


class City(BaseModel):
    name: str


class Color(str, Enum):  # noqa: UP042
    RED = "red"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "data", "text"),
    [
        (0, 0, "0"),
        (False, False, "false"),
        ("", "", ""),
        ([], [], "[]"),
        (None, None, "null"),
        ({}, {}, "{}"),
        ("plain", "plain", "plain"),
        ((1, "é"), [1, "é"], '[1,"é"]'),
        (City(name="Oslo"), {"name": "Oslo"}, '{"name":"Oslo"}'),
        ([Point(1)], [{"x": 1}], '[{"x":1}]'),
        ({date(2025, 1, 2): {3}}, {"2025-01-02": [3]}, '{"2025-01-02":[3]}'),
        (Color.RED, "red", "red"),
        (b"bytes", "bytes", '"bytes"'),
        (2**70, 2**70, str(2**70)),
        ([math.nan, -math.inf], ["NaN", "-Infinity"], '["NaN","-Infinity"]'),
    ],
)
def test_values_reach_the_model_as_they_are(value: Any, data: Any, text: str) -> None:  # L75
    encoded = encode_result(value)
    assert encoded == (data, text)
    assert type(encoded[0]) is type(data)


def test_a_lone_surrogate_is_replaced_because_no_request_can_carry_it() -> None:
    assert encode_result("a\udcffb")[1] == "a\ufffdb"
    assert encode_result(["\udcff", {"\udcff": 1}]) == (["\ufffd", {"\ufffd": 1}], '["\ufffd",{"\ufffd":1}]')
    assert encode_result(City(name="\udcff"))[0] == {"name": "\ufffd"}
    assert encode_result("\ud83d\ude00")[1] == "\U0001f600"


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "named"), [(object(), "object"), ([object()], "list"), (circle(), "list"), (b"\xff", "bytes")]
)
def test_what_cannot_be_written_is_an_error_that_names_the_type(value: Any, named: str) -> None:
    with pytest.raises(ToolError, match=rf"\(of type {named}\) cannot be written as JSON"):
        encode_result(value)


@pytest.mark.parametrize("content", [b"x", None, 5])
def test_the_content_of_a_result_is_a_text_or_an_error_that_shows_it(content: Any) -> None:
    with pytest.raises(ToolError, match=f"is no text: {content!r}"):
        encode_result(ToolResult(1, content))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON.filter(lambda value: not isinstance(value, str)))
def test_json_comes_through_unchanged(value: Any) -> None:
    data, text = encode_result(value)
    assert data == value
    assert orjson.loads(text) == value
