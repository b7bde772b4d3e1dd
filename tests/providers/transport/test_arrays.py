from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.providers.bounds import Bounds, OutOfBounds
from rxloop.providers.transport.stream_decoders import ArrayDecoder
from support.processes.counters import count_operations, measure_peak_memory
from support.vendors.recordings import body, needs_recordings, recording
from support.vendors.split_streams import decode_pieces, split_bytes, split_stream

SMALL = Bounds(document=12, depth=3)
texts = st.text(st.sampled_from('ab"\\[]{},: \n\r\té😀'), max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
spaces = st.sampled_from([b"", b"\n", b"\r\n", b" \t", b"\n,\r\n"])


@st.composite
def generate_arrays(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """Generate encoded arrays with their elements."""
    elements = draw(st.lists(st.dictionaries(texts, values, max_size=3), max_size=5))
    parts = [draw(spaces).replace(b",", b""), b"["]
    for number, element in enumerate(elements):
        escaped, indent = draw(st.booleans()), draw(st.sampled_from([None, 1]))
        between = draw(spaces.filter(lambda space: b"," not in space)) + b","
        parts.append((between if number else b"") + draw(st.sampled_from([b"", b"\r\n"])))
        parts.append(json.dumps(element, ensure_ascii=escaped, indent=indent).encode())
    parts += [b"\n]", draw(spaces).replace(b",", b"")]
    return b"".join(parts), elements


def read(pieces: list[bytes]) -> list[Any]:
    found, failure = decode_pieces(ArrayDecoder(), pieces)
    assert failure is None
    return [json.loads(each) for each in found]


@given(st.data(), generate_arrays())
def test_array_is_decoded_at_any_read_boundaries(data: st.DataObject, made: tuple[bytes, list[Any]]) -> None:
    stream, elements = made
    assert read(data.draw(split_stream(stream))) == elements


@given(generate_arrays())
def test_array_is_decoded_byte_by_byte(made: tuple[bytes, list[Any]]) -> None:
    stream, elements = made
    assert read(split_bytes(stream)) == elements


@settings(max_examples=500)
@given(st.data(), st.lists(st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"x", b" ", b"\xff"])))
def test_arbitrary_bytes_are_decoded_equally_at_any_read_boundaries(data: st.DataObject, made: list[bytes]) -> None:
    stream = b"".join(made)
    whole = decode_pieces(ArrayDecoder(SMALL), [stream])
    assert decode_pieces(ArrayDecoder(SMALL), data.draw(split_stream(stream))) == whole
    assert decode_pieces(ArrayDecoder(SMALL), split_bytes(stream)) == whole


def test_element_is_returned_once_it_is_complete() -> None:
    decoder = ArrayDecoder()
    assert decoder.feed(b'[{"a": [1, {"b": "}"}]') == []
    assert decoder.feed(b"}") == [b'{"a": [1, {"b": "}"}]}']
    assert decoder.feed(b'\n,\r\n{"c": "\\"}"}, {') == [b'{"c": "\\"}"}']
    assert decoder.flush() == [b"{"]


def test_values_that_are_not_objects_are_returned() -> None:
    assert decode_pieces(ArrayDecoder(), [b'[1, "a, {b}", {"c": 2}, null] tail']) == (
        [b'1, "a, {b}"', b'{"c": 2}', b"null", b"tail"],
        None,
    )


def test_elements_before_an_error_are_returned_first() -> None:
    decoder = ArrayDecoder(Bounds(depth=3))
    assert decoder.feed(b'[{"a": 1}, {"b": [[[') == [b'{"a": 1}']
    for failing in (lambda: decoder.feed(b"]"), decoder.flush):
        with pytest.raises(OutOfBounds, match="nested more than 3 deep"):
            failing()


def test_brackets_after_the_array_are_rejected_without_scanning_the_rest() -> None:
    decoder = ArrayDecoder()
    assert decoder.feed(b'[{"a": 1}]' + b"[]" * 1_000) == [b'{"a": 1}', b"["]
    assert decoder.feed(b"{}") == []
    assert decoder.flush() == []


def test_endless_element_is_rejected() -> None:
    decoder = ArrayDecoder(Bounds(document=1000))
    assert [decoder.feed(b'{"text": "' + b"x" * 90) for _ in range(10)] == [[]] * 10
    with pytest.raises(OutOfBounds, match="more than 1,000 bytes"):
        decoder.feed(b"x")


def test_whitespace_between_elements_needs_no_memory() -> None:
    decoder = ArrayDecoder(Bounds(document=1000))
    decoder.feed(b'[{"a": 1}')
    assert [decoder.feed(b" \n,\r\n" * 20) for _ in range(100)] == [[]] * 100


@pytest.mark.parametrize("piece", [b"x", b"\\\\", b'"a","', b"[1],", b"\\"])
def test_feed_does_not_copy_the_earlier_pieces_of_an_element(piece: bytes) -> None:
    decoder = ArrayDecoder()
    decoder.feed(b'[{"text": ["')
    costs = [count_operations(lambda: decoder.feed(piece * 2)) for _ in range(4)]
    for _ in range(20_000):
        assert decoder.feed(piece * 2) == []
    assert count_operations(lambda: decoder.feed(piece * 2)) <= max(costs) + 20
    assert measure_peak_memory(lambda: decoder.feed(piece * 2)) < 100_000


@needs_recordings
@pytest.mark.parametrize(
    "name", ["google-gen-s-test-prompt-bfea1c8b", "google-gen-s-test-tools-with-nested-pydantic-models-aca74d10"]
)
def test_recorded_array_is_decoded(name: str) -> None:
    for exchange in recording(name)["exchanges"]:
        stream = body(exchange)
        assert read([stream]) == read(split_bytes(stream)) == json.loads(stream)
