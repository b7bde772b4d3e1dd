from __future__ import annotations

import json
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.providers.bounds import Bounds, OutOfBounds, Unreadable
from rxloop.providers.transport.stream_decoders import AWSDecoder
from support.processes.counters import count_operations, measure_peak_memory
from support.vendors.aws_events import chunk, header, message, prelude
from support.vendors.split_streams import decode_pieces, split_bytes, split_stream

SMALL = Bounds(document=300)
OTHERS = [
    message(b"{}", {":event-type": "metadata", ":message-type": "event"}),
    message(b"", extra=header("a", 0) + header("b", 1) + header("c", 2, b"x") + header("d", 3, b"xx")),
    message(b"", extra=header("e", 4, b"4444") + header("f", 5, b"8" * 8) + header("g", 8, b"8" * 8)),
    message(b"", extra=header("h", 9, b"u" * 16) + header("i", 6, b"\0\3xyz")),
]


@st.composite
def generate_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Generate streams with their documents, including other message types."""
    payloads = draw(st.lists(st.binary(max_size=60), max_size=6))
    parts: list[bytes] = []
    for payload in payloads:
        parts += draw(st.lists(st.sampled_from(OTHERS), max_size=2))
        parts.append(chunk(payload, padding=draw(st.sampled_from(["", "abcdefgh"]))))
    return b"".join(parts), payloads


@given(st.data(), generate_streams())
def test_stream_is_decoded_at_any_read_boundaries(data: st.DataObject, made: tuple[bytes, list[bytes]]) -> None:
    stream, payloads = made
    assert decode_pieces(AWSDecoder(), data.draw(split_stream(stream))) == (payloads, None)
    assert decode_pieces(AWSDecoder(), split_bytes(stream)) == (payloads, None)


@given(st.data(), generate_streams())
def test_damaged_stream_returns_complete_documents_at_any_read_boundaries(
    data: st.DataObject, made: tuple[bytes, list[bytes]]
) -> None:
    stream, payloads = bytearray(made[0] + OTHERS[0]), made[1]
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    whole = decode_pieces(AWSDecoder(SMALL), [bytes(stream)])
    assert whole[0] == payloads[: len(whole[0])]
    assert decode_pieces(AWSDecoder(SMALL), data.draw(split_stream(bytes(stream)))) == whole
    assert decode_pieces(AWSDecoder(SMALL), split_bytes(bytes(stream))) == whole


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_decoded_or_rejected(stream: bytes) -> None:
    assert decode_pieces(AWSDecoder(SMALL), split_bytes(stream)) == decode_pieces(AWSDecoder(SMALL), [stream])


def test_document_is_returned_once_its_message_is_complete() -> None:
    decoder = AWSDecoder()
    first = chunk(b'{"a":1}')
    assert decoder.feed(first[:-1]) == []
    assert decoder.feed(first[-1:] + first[:20]) == [b'{"a":1}']
    assert decoder.flush() == []


@pytest.mark.parametrize(
    ("payload", "headers", "kind", "words"),
    [
        (b'{"message":"slow down"}', {":exception-type": "throttlingException"}, "throttlingException", "slow down"),
        (
            b'{"message":"it failed","originalStatusCode":500,"originalMessage":"why"}',
            {":exception-type": "modelStreamErrorException"},
            "modelStreamErrorException",
            "it failed: why",
        ),
        (b"no JSON", {":exception-type": "validationException"}, "validationException", "no JSON"),
        (b"", {":message-type": "error", ":error-code": "Broken", ":error-message": "oops"}, "Broken", "oops"),
        (b"[1]", {":message-type": "odd"}, "error", "[1]"),
    ],
)
def test_exception_becomes_an_anthropic_error(payload: bytes, headers: dict[str, str], kind: str, words: str) -> None:
    (found,) = AWSDecoder().feed(message(payload, {":message-type": "exception", **headers}))
    assert json.loads(found) == {"type": "error", "error": {"type": kind, "message": words}}


def damage(place: int) -> bytes:
    stream = bytearray(chunk(b'{"a":1}'))
    stream[place] ^= 1
    return bytes(stream)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (damage(0), "prelude"),
        (damage(9), "prelude"),
        (damage(40), "wrong message checksum"),
        (damage(-1), "wrong message checksum"),
        (prelude(15, 0), "invalid message length"),
        (prelude(40, 25), "invalid message length"),
        (message(b"", extra=b"\3ab"), "headers"),
        (message(b"", extra=b"\1a\7\0\5abc"), "headers"),
        (message(b"", extra=b"\1a\12"), "headers"),
        (message(b"", extra=b"\1\xff\0"), "headers"),
        (message(b'{"bytes":"a b"}', {":event-type": "chunk"}), "invalid base64"),
        (message(b'{"bytes":"abc"}', {":event-type": "chunk"}), "invalid base64"),
    ],
)
def test_invalid_stream_is_rejected(stream: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        AWSDecoder().feed(stream)


def test_messages_before_a_damaged_message_are_returned_first() -> None:
    decoder = AWSDecoder()
    assert decoder.feed(chunk(b"a") + damage(-1) + chunk(b"b")) == [b"a"]
    for failing in (lambda: decoder.feed(chunk(b"c")), decoder.flush):
        with pytest.raises(Unreadable, match="checksum"):
            failing()


def test_long_message_is_rejected_by_its_header() -> None:
    with pytest.raises(OutOfBounds, match="more than 300 bytes"):
        AWSDecoder(SMALL).feed(prelude(301, 0))


def test_escaped_slashes_are_accepted() -> None:
    payload = b64encode(b"\xff\xff\xff").replace(b"/", b"\\/")
    assert AWSDecoder().feed(message(b'{"p": "x", "bytes" : "' + payload + b'"}')) == [b"\xff\xff\xff"]


def test_feed_does_not_copy_the_earlier_pieces_of_a_message() -> None:
    decoder = AWSDecoder()
    decoder.feed(prelude(3_000_000, 0))
    cost = max(count_operations(lambda: decoder.feed(b"x")) for _ in range(4))
    for _ in range(20_000):
        assert decoder.feed(b"x" * 50) == []
    assert count_operations(lambda: decoder.feed(b"x")) <= cost
    assert measure_peak_memory(lambda: decoder.feed(b"x")) < 300_000


def test_botocore_decodes_the_same_documents() -> None:
    eventstream = pytest.importorskip("botocore.eventstream", reason="botocore is not installed")
    payloads = [b'{"a":1}', b"\xff" * 9]
    stream = b"".join([chunk(payloads[0], padding="abc"), *OTHERS, chunk(payloads[1])])
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(stream)
    theirs = [json.loads(each.payload or b"{}").get("bytes") for each in buffer]
    assert [b64decode(each) for each in theirs if each] == payloads
    assert decode_pieces(AWSDecoder(), [stream]) == (payloads, None)
