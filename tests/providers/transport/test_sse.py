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
def generate_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Generate event streams with their payloads, using all standard features."""
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


@given(st.data(), generate_streams())
def test_stream_is_decoded_at_any_read_boundaries(data: st.DataObject, made: tuple[bytes, list[bytes]]) -> None:
    # L70
    stream, payloads = made
    assert decode(data.draw(split_stream(stream))) == payloads


@given(generate_streams())
def test_stream_is_decoded_byte_by_byte(made: tuple[bytes, list[bytes]]) -> None:
    # L70
    stream, payloads = made
    assert decode(split_bytes(stream)) == payloads


def test_payload_is_returned_at_its_blank_line() -> None:
    for newline in NEWLINES:
        decoder = SSEDecoder()
        assert decoder.feed(b"data: a" + newline) == []
        assert decoder.feed(newline[:1]) == [b"a"]


def test_one_read_returns_all_complete_payloads() -> None:
    assert SSEDecoder().feed(b"data: a\n\ndata: b\n\n: note\n\ndata: c\n\nda") == [b"a", b"b", b"c"]


def test_last_event_without_a_blank_line_is_returned_by_flush() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n\ndata: b") == [b"a"]
    assert decoder.flush() == [b"b"]
    assert decoder.flush() == []


@pytest.mark.parametrize("line", [b"data: x\n", b": a comment\n", b"data: x\r\n"])
def test_feed_does_not_copy_the_earlier_lines_of_an_event(line: bytes) -> None:
    decoder = SSEDecoder()
    for _ in range(20_000):
        assert decoder.feed(line) == []
    assert measure_peak_memory(lambda: decoder.feed(line)) < 10_000
