from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.providers.bounds import Bounds, OutOfBounds, check_document

JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text('ab"\\\\[]{},', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("[{", max_size=3), inner, max_size=3),
    max_leaves=20,
)


def measure_depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return 1 + max(map(measure_depth, value), default=0) if isinstance(value, list) else 0  # pyright: ignore[reportUnknownArgumentType]


def test_brackets_and_commas_within_a_string_do_not_count() -> None:
    code = orjson.dumps({"arguments": '{"a": [1, "\\", 2]},' * 100_000})
    check_document(code, Bounds())


@given(JSON)
def test_depth_counts_values_but_not_brackets_in_strings(value: object) -> None:
    data = orjson.dumps(value)
    check_document(data, Bounds(depth=measure_depth(value)))
    if measure_depth(value):
        with pytest.raises(OutOfBounds, match=r"nested more than .*Bounds\(depth="):
            check_document(data, Bounds(depth=measure_depth(value) - 1))


@pytest.mark.parametrize("value", [b"[],", b'"a",', b"1,", b"{},", b'"\\\\",'])
def test_values_of_a_large_document_are_counted(value: bytes) -> None:
    data = b"[" + value * 250_000 + b"1]"
    with pytest.raises(OutOfBounds, match="values"):
        check_document(data, Bounds())
    check_document(data, Bounds(values=1_000_000))


def test_document_length_is_limited() -> None:
    check_document(b" " * 10, Bounds(document=10))
    with pytest.raises(OutOfBounds, match=r"more than 10 bytes .*Bounds\(document="):
        check_document(b" " * 11, Bounds(document=10))
