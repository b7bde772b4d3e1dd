"""Streams in all their frames, over real sockets: each means what the same events mean in another frame."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rxloop import errors
from rxloop.providers import Bounds, HTTPModel, Preset, Retry, http_model
from support.http_server import REQUEST, Reply, Server, StreamResult, collect, streamed_text
from support.vendors.aws_events import chunk, message
from support.vendors.echo_codec import EchoCodec, EchoReader

pytestmark = pytest.mark.usefixtures("transport")

EVENTS: list[dict[str, Any]] = [{"text": "Hel"}, {"text": "lo [{"}, {"text": '"}]'}, {"stop": True}]
SAID = 'Hello [{"}]'
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
AWS = "application/vnd.amazon.eventstream"
ARRAY = "application/json; charset=UTF-8"


class PlainReader(EchoReader):
    """The same, for a vendor that streams no arrays."""

    accepts_arrays = False


class PlainCodec(EchoCodec):
    reads = PlainReader


def model(server: Server, wire: type[EchoCodec] = EchoCodec, **options: Any) -> HTTPModel:
    preset = Preset(name="echo", base_url=server.base_url)
    return http_model("m", preset, wire, retry=Retry(attempts=1), **options)


async def asked(server: Server, reply: Reply, wire: type[EchoCodec] = EchoCodec, **options: Any) -> StreamResult:
    server.answer(reply)
    provider = model(server, wire, **options)
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    return answer


def framed(kind: str, events: list[dict[str, Any]]) -> Reply:
    if kind == AWS:
        return Reply([chunk(orjson.dumps(event)) for event in events], content_type=AWS)
    return Reply([b"[", b",\r\n".join(orjson.dumps(event) for event in events), b"\n]"], content_type=kind)


def cut(reply: Reply, size: int) -> Reply:
    data = b"".join(reply.pieces)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return Reply(pieces, content_type=reply.content_type, headers=reply.headers)


@pytest.mark.parametrize("kind", [AWS, ARRAY, "text/event-stream", "application/json"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_stream_in_another_frame_says_the_same(server: Server, kind: str, size: int) -> None:
    answer = await asked(server, cut(framed(kind, EVENTS), size))
    assert answer.error is None
    assert streamed_text(answer) == SAID


@pytest.mark.parametrize("kind", [AWS, ARRAY])
async def test_an_error_in_the_middle_keeps_the_text_and_has_the_id_of_its_answer(server: Server, kind: str) -> None:
    reply = framed(kind, [*EVENTS[:1], ERROR])
    answer = await asked(server, Reply(reply.pieces, content_type=kind, headers={"x-amzn-RequestId": "req_1"}))
    assert type(answer.error) is errors.Overloaded
    assert answer.error.request_id == "req_1"
    assert str(answer.error).endswith("busy (request req_1)")
    assert streamed_text(answer) == "Hel"


async def test_an_exception_of_aws_in_the_middle_is_an_error_of_the_tree(server: Server) -> None:
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    failure = message(b'{"message":"Too many requests"}', headers)
    answer = await asked(server, Reply([chunk(b'{"text":"Hel"}'), failure], content_type=AWS))
    assert type(answer.error) is errors.RateLimited
    assert streamed_text(answer) == "Hel"


@pytest.mark.parametrize("kind", [AWS, ARRAY])
async def test_a_stream_that_stops_in_the_middle_was_cut_short(server: Server, kind: str) -> None:
    whole = b"".join(framed(kind, EVENTS).pieces)
    answer = await asked(server, Reply([whole[:-30]], content_type=kind, headers={"request-id": "req_2"}))
    assert type(answer.error) is errors.ProviderConnectionError
    assert "cut short" in str(answer.error)
    assert answer.error.request_id == "req_2"


async def test_a_damaged_message_breaks_the_protocol(server: Server) -> None:
    first, second = chunk(b'{"text":"Hel"}'), bytearray(chunk(b'{"text":"lo"}'))
    second[-1] ^= 1
    answer = await asked(server, Reply([first + second], content_type=AWS))
    assert type(answer.error) is errors.ProviderProtocolError
    assert "echo:m at" in str(answer.error)
    assert "checksum" in str(answer.error)
    assert streamed_text(answer) == "Hel"


async def test_an_object_in_place_of_an_array_is_a_whole_answer(server: Server) -> None:
    answer = await asked(server, Reply([b' {"text": "Hel', b'lo", "stop": true}'], content_type=ARRAY))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


async def test_an_array_from_a_vendor_that_streams_none_is_a_whole_answer(server: Server) -> None:
    answer = await asked(server, framed("text/event-stream", EVENTS), PlainCodec)
    assert type(answer.error) is errors.ProviderProtocolError
    assert "not a JSON object" in str(answer.error)


async def test_an_array_that_does_not_end_is_out_of_bounds(server: Server) -> None:
    reply = Reply([b'[{"text": "Hel"}, {"text": "' + b"x" * 1000] * 3, content_type=ARRAY)
    answer = await asked(server, reply, bounds=Bounds(document=2000))
    assert "bounds=Bounds(document=" in str(answer.error)
    assert streamed_text(answer) == "Hel"
