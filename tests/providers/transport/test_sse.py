from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.providers.transport.stream_decoders import SSEDecoder
from support.processes.counters import measure_peak_memory
from support.vendors.split_streams import split_bytes, split_stream

NEWLINES = (b"\n", b"\r\n", b"\r")
text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=12)


def decode(pieces: list[bytes]) -> list[bytes]:
    decoder = SSEDecoder()
    return [payload for piece in pieces for payload in decoder.feed(piece)] + decoder.flush()


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """An event stream with everything that the standard allows, and the payloads in it."""
    parts: list[bytes] = [b"\xef\xbb\xbf"] if draw(st.booleans()) else []
    payloads: list[bytes] = []
    newline = draw(st.sampled_from(NEWLINES))
    for _ in range(draw(st.integers(0, 6))):
        if not draw(st.integers(0, 3)):
            newline = draw(st.sampled_from(NEWLINES))
        lines: list[bytes] = []
        data = [line.encode() for line in draw(st.lists(text, max_size=3))]
        for line in data:
            if draw(st.booleans()):
                lines.append(draw(st.sampled_from([b": comment", b"event: error", b"id: 7", b"retry: 1", b":", b"x"])))
            tight = draw(st.booleans()) and not line.startswith(b" ")
            lines.append((b"data:" if tight else b"data: ") + line)
        if data:
            payloads.append(b"\n".join(data))
        parts += [line + newline for line in lines] + [newline] * draw(st.integers(1, 3))
    return b"".join(parts), payloads


@given(st.data(), streams())
def test_any_stream_gives_its_payloads_however_it_is_cut(data: st.DataObject, made: tuple[bytes, list[bytes]]) -> None:
    # L70
    stream, payloads = made
    assert decode(data.draw(split_stream(stream))) == payloads


@given(streams())
def test_a_stream_that_comes_byte_by_byte_gives_its_payloads(made: tuple[bytes, list[bytes]]) -> None:
    # L70
    stream, payloads = made
    assert decode(split_bytes(stream)) == payloads


def test_a_payload_is_given_as_soon_as_its_blank_line_is_there() -> None:
    for newline in NEWLINES:
        decoder = SSEDecoder()
        assert decoder.feed(b"data: a" + newline) == []
        assert decoder.feed(newline[:1]) == [b"a"]


def test_one_read_gives_all_its_payloads_at_once() -> None:
    assert SSEDecoder().feed(b"data: a\n\ndata: b\n\n: note\n\ndata: c\n\nda") == [b"a", b"b", b"c"]


def test_a_last_event_without_a_blank_line_is_given_at_the_end() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n\ndata: b") == [b"a"]
    assert decoder.flush() == [b"b"]
    assert decoder.flush() == []


@pytest.mark.parametrize("line", [b"data: x\n", b": a comment\n", b"data: x\r\n"])
def test_a_further_line_of_an_event_costs_the_same_however_many_there_are(line: bytes) -> None:
    decoder = SSEDecoder()
    for _ in range(20_000):
        assert decoder.feed(line) == []
    assert measure_peak_memory(lambda: decoder.feed(line)) < 10_000
