"""Streams in all frame formats over real sockets. The same events have the same meaning in each format."""

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
    """Chat reader without array streams."""

    accepts_arrays = False


class PlainCodec(EchoCodec):
    reads = PlainReader


def make_model(server: Server, wire: type[EchoCodec] = EchoCodec, **options: Any) -> HTTPModel:
    preset = Preset(name="echo", base_url=server.base_url)
    return http_model("m", preset, wire, retry=Retry(attempts=1), **options)


async def ask(server: Server, reply: Reply, wire: type[EchoCodec] = EchoCodec, **options: Any) -> StreamResult:
    server.answer(reply)
    provider = make_model(server, wire, **options)
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    return answer


def frame(kind: str, events: list[dict[str, Any]]) -> Reply:
    if kind == AWS:
        return Reply([chunk(orjson.dumps(event)) for event in events], content_type=AWS)
    return Reply([b"[", b",\r\n".join(orjson.dumps(event) for event in events), b"\n]"], content_type=kind)


def split(reply: Reply, size: int) -> Reply:
    data = b"".join(reply.pieces)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return Reply(pieces, content_type=reply.content_type, headers=reply.headers)


@pytest.mark.parametrize("kind", [AWS, ARRAY, "text/event-stream", "application/json"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_stream_has_the_same_meaning_in_each_frame_format(server: Server, kind: str, size: int) -> None:
    answer = await ask(server, split(frame(kind, EVENTS), size))
    assert answer.error is None
    assert streamed_text(answer) == SAID


@pytest.mark.parametrize("kind", [AWS, ARRAY])
async def test_error_in_the_stream_keeps_the_text_and_the_request_id(server: Server, kind: str) -> None:
    reply = frame(kind, [*EVENTS[:1], ERROR])
    answer = await ask(server, Reply(reply.pieces, content_type=kind, headers={"x-amzn-RequestId": "req_1"}))
    assert type(answer.error) is errors.Overloaded
    assert answer.error.request_id == "req_1"
    assert str(answer.error).endswith("busy (request req_1)")
    assert streamed_text(answer) == "Hel"


async def test_aws_exception_in_the_stream_is_a_provider_error(server: Server) -> None:
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    failure = message(b'{"message":"Too many requests"}', headers)
    answer = await ask(server, Reply([chunk(b'{"text":"Hel"}'), failure], content_type=AWS))
    assert type(answer.error) is errors.RateLimited
    assert streamed_text(answer) == "Hel"


@pytest.mark.parametrize("kind", [AWS, ARRAY])
async def test_stream_that_stops_early_is_a_connection_error(server: Server, kind: str) -> None:
    whole = b"".join(frame(kind, EVENTS).pieces)
    answer = await ask(server, Reply([whole[:-30]], content_type=kind, headers={"request-id": "req_2"}))
    assert type(answer.error) is errors.ProviderConnectionError
    assert "cut short" in str(answer.error)
    assert answer.error.request_id == "req_2"


async def test_damaged_message_is_a_protocol_error(server: Server) -> None:
    first, second = chunk(b'{"text":"Hel"}'), bytearray(chunk(b'{"text":"lo"}'))
    second[-1] ^= 1
    answer = await ask(server, Reply([first + second], content_type=AWS))
    assert type(answer.error) is errors.ProviderProtocolError
    assert "echo:m at" in str(answer.error)
    assert "checksum" in str(answer.error)
    assert streamed_text(answer) == "Hel"


async def test_object_instead_of_an_array_is_a_whole_answer(server: Server) -> None:
    answer = await ask(server, Reply([b' {"text": "Hel', b'lo", "stop": true}'], content_type=ARRAY))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


async def test_unexpected_array_is_a_protocol_error(server: Server) -> None:
    answer = await ask(server, frame("text/event-stream", EVENTS), PlainCodec)
    assert type(answer.error) is errors.ProviderProtocolError
    assert "not a JSON object" in str(answer.error)


async def test_endless_array_exceeds_the_bounds(server: Server) -> None:
    reply = Reply([b'[{"text": "Hel"}, {"text": "' + b"x" * 1000] * 3, content_type=ARRAY)
    answer = await ask(server, reply, bounds=Bounds(document=2000))
    assert "bounds=Bounds(document=" in str(answer.error)
    assert streamed_text(answer) == "Hel"
