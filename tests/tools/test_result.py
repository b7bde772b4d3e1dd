import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop import ToolResult
from rxloop.errors import ToolError
from rxloop.tools.result import encode_result
from rxloop.tools.result_parts import MAX_BYTES, MAX_VALUES


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
def test_value_reaches_the_model_unchanged(value: Any, data: Any, text: str) -> None:  # L75
    encoded = encode_result(value)
    assert encoded == (data, text)
    assert type(encoded[0]) is type(data)


def test_lone_surrogate_is_replaced() -> None:
    assert encode_result("a\udcffb")[1] == "a\ufffdb"
    assert encode_result(["\udcff", {"\udcff": 1}]) == (["\ufffd", {"\ufffd": 1}], '["\ufffd",{"\ufffd":1}]')
    assert encode_result(City(name="\udcff"))[0] == {"name": "\ufffd"}
    assert encode_result("\ud83d\ude00")[1] == "\U0001f600"


def make_cycle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "type_name"), [(object(), "object"), ([object()], "list"), (make_cycle(), "list"), (b"\xff", "bytes")]
)
def test_value_without_a_json_form_is_an_error_with_its_type(value: Any, type_name: str) -> None:
    with pytest.raises(ToolError, match=rf"\(of type {type_name}\) cannot be written as JSON"):
        encode_result(value)


@pytest.mark.parametrize("content", [b"x", None, 5])
def test_content_that_is_not_a_string_is_an_error(content: Any) -> None:
    with pytest.raises(ToolError, match=f"is not a string: {content!r}"):
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
def test_json_value_is_unchanged(value: Any) -> None:
    data, text = encode_result(value)
    assert data == value
    assert orjson.loads(text) == value


class Rows(BaseModel):
    rows: list[int]


@dataclass
class Table:
    rows: list[int]


NUMBERS = list(range(MAX_VALUES))


@pytest.mark.parametrize(
    "value", [[NUMBERS], {"a": NUMBERS}, (NUMBERS,), Rows(rows=NUMBERS), [Table(NUMBERS)], count(), [[NUMBERS[1:]] * 2]]
)
def test_result_with_too_many_values_is_refused_with_the_limit(value: Any) -> None:
    with pytest.raises(ToolError, match=r"result has more than 50,000 values\. Ask for less"):
        encode_result(value)
    assert encode_result(NUMBERS)[0] == NUMBERS


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), "ü" * (MAX_BYTES // 2)])
def test_result_that_is_too_long_is_refused_with_the_limit(text: str) -> None:
    for value in ([text], {"a": {"b": text}}, Rows.model_construct(rows=text), {text: 1}):
        with pytest.raises(ToolError, match=r"result is longer than 32 MB\. Ask for less"):
            encode_result(value)
    for value in (text * 3, ToolResult(1, text * 3)):
        with pytest.raises(ToolError, match=r"result is longer than 32 MB\. Ask for less"):
            encode_result(value)


def test_result_is_read_only_up_to_the_limit() -> None:
    rows_read = 0

    class Row(list[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal rows_read
            rows_read += 1
            return super().__iter__()

    with pytest.raises(ToolError, match="more than 50,000 values"):
        encode_result([Row([0] * 1_000) for _ in range(500)])
    assert rows_read == 49


def test_iterator_is_read_up_to_the_limit_and_a_nested_one_is_refused() -> None:
    assert encode_result(each for each in "ab")[0] == ["a", "b"]
    inside = count()
    with pytest.raises(ToolError, match=r"an iterator \(count\) can be read only once; return a list"):
        encode_result({"rows": inside})
    assert next(inside) == 0


def test_huge_number_is_refused_before_it_is_formatted() -> None:
    for value in (1 << 50_000_000, [1 << 50_000_000]):
        with pytest.raises(ToolError, match=r"more than 4,300 digits"):
            encode_result(value)
    assert encode_result([10**4_200])[1] == f"[{10**4_200}]"
