"""Failures in unusual formats, over real sockets."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import httpx
import orjson
import pytest

from rxloop import errors
from rxloop.providers import Retry, openai_chat
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    StreamResult,
    chat_model,
    collect,
    delta,
    sse,
    start_server,
    streamed_text,
)

pytestmark = pytest.mark.usefixtures("transport")

JSON = "application/json"
HELLO = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}


async def ask(server: Server, *replies: Reply, **options: Any) -> StreamResult:
    server.answer(*replies)
    provider = chat_model(server, **{"retry": Retry(attempts=1), **options})
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    return answer


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no explanation"),
        (b"null", "no explanation"),
        (b"[]", "no explanation"),
        (b"{}", "no explanation"),
        (b'{"error": null}', "no explanation"),
        (b'{"error": []}', "no explanation"),
        (b'{"error": {"message": null, "code": null}}', "no explanation"),
        (b'"out of order"', "out of order"),
        (b"7", "7"),
        (b'[{"error": {"code": 400, "message": "list", "status": "INVALID_ARGUMENT"}}]', "list"),
        (b'{"error": "Bad Request", "message": "the reason"}', "the reason"),
        (b'{"errors": [{"message": "several"}]}', "several"),
        (b'{"error": {"error": {"message": "inner"}}}', "inner"),
        (b'{"error": {"message": {"detail": "deep"}}}', "deep"),
        (b'{"error": {"code": {"a": 1}, "type": [2], "message": "odd"}}', "odd"),
        (b"\xff\xfe not utf-8", "not utf-8"),
        (b"[" * 5000, "[[["),
    ],
)
async def test_error_of_any_shape_is_classified_by_its_status(server: Server, body: bytes, words: str) -> None:
    answer = await ask(server, Reply([body], 400, content_type=JSON))
    assert type(answer.error) is errors.BadRequest
    assert words in str(answer.error)
    assert answer.error.status == 400


async def test_error_in_a_list_is_classified_by_its_code(server: Server) -> None:
    # Format of Google's compatible endpoint.
    body = b'[{"error": {"code": 400, "message": "The input is too long.", "status": "INVALID_ARGUMENT"}}]'
    answer = await ask(server, Reply([body], 400, content_type=JSON))
    assert isinstance(answer.error, errors.ContextLengthExceeded)


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        ({"error": {"code": 502, "message": "no"}}, errors.ServerError),
        ({"error": {"code": "429", "message": "no"}}, errors.RateLimited),
        ({"error": {"code": None, "message": "no"}}, errors.ServerError),
        ({"error": {"code": True, "message": "no"}}, errors.ServerError),
        ({"error": {"code": 1302, "message": "no"}}, errors.RateLimited),
        ({"error": {"code": "rate_limit_exceeded", "message": "no"}}, errors.RateLimited),
        ({"error": {"code": 401, "message": "no"}, "choices": []}, errors.AuthenticationError),
        ({"error": "no"}, errors.ServerError),
        ({"error": ["no"]}, errors.ServerError),
        ({"error": True, "message": "no"}, errors.ServerError),
        ({"object": "error", "message": "no", "code": 400}, errors.BadRequest),
        ({"message": "no", "code": 503}, errors.Overloaded),
        ({"detail": "no"}, errors.ServerError),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, errors.Overloaded),
        (b'[{"error": {"code": 429, "message": "no"}}]', errors.RateLimited),
        (b"no", errors.ProviderProtocolError),
        (b'"no"', errors.ProviderProtocolError),
        (b"[" * 90 + b"no", errors.ProviderProtocolError),
    ],
)
@pytest.mark.parametrize("name", [b"", b"event: error\n"])
async def test_error_in_the_stream_keeps_the_text(
    server: Server, chunk: Any, kind: type[Exception], name: bytes
) -> None:
    # L66
    (data,) = sse(chunk, done=False)
    answer = await ask(server, Reply([*sse(delta(content="Hel"), done=False), name + data]))
    assert type(answer.error) is kind
    assert "no" in str(answer.error)
    assert streamed_text(answer) == "Hel"


@pytest.mark.parametrize(
    "chunk", [{"type": "ping"}, {"id": "x", "choices": []}, {"choices": None}, {}, {"error": None}]
)
async def test_empty_chunk_is_not_an_error(server: Server, chunk: Any) -> None:
    answer = await ask(server, Reply(sse(chunk, delta(content="Hello"), chunk, delta("stop"), chunk)))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


async def test_notice_between_chunks_is_not_an_error(server: Server) -> None:
    answer = await ask(server, Reply(sse({"message": "queued"}, delta(content="Hello"), delta("stop"))))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


async def test_notice_without_an_answer_is_the_error(server: Server) -> None:
    # L66
    answer = await ask(server, Reply(sse({"message": "no room", "code": 503})))
    assert type(answer.error) is errors.Overloaded
    assert "no room" in str(answer.error)


KINDS = [JSON, "text/event-stream", "text/plain", ""]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [b"%s", b"[%s]"])
async def test_error_with_status_200_is_an_error(server: Server, kind: str, form: bytes) -> None:
    body = form % b'{"error": {"code": 429,\n\n "message": "slow down"}}'
    answer = await ask(server, Reply([body[:9], body[9:]], content_type=kind))
    assert type(answer.error) is errors.RateLimited
    assert "slow down" in str(answer.error)


@pytest.mark.parametrize("kind", KINDS)
async def test_whole_answer_to_a_stream_request_is_read(server: Server, kind: str) -> None:
    body = b"\n \n" + orjson.dumps(HELLO, option=orjson.OPT_INDENT_2)
    answer = await ask(server, Reply([body[:1], body[1:30], body[30:]], content_type=kind))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain", ""])
async def test_page_with_a_wrong_content_type_is_a_protocol_error_without_retry(server: Server, kind: str) -> None:
    page = Reply([b"<!doctype html>", b"<h1>Sign in</h1>"], content_type=kind)
    answer = await ask(server, page, retry=Retry(first=0))
    assert isinstance(answer.error, errors.ProviderProtocolError)
    assert "Sign in" in str(answer.error)
    assert len(server.requests) == 1


async def test_html_error_is_shortened_to_a_line(server: Server) -> None:
    page = b"<html>\n<head><title>502</title></head>\n<body>\n<h1>Bad gateway</h1>" + b" " * 5000 + b"</body></html>"
    answer = await ask(server, Reply([page], 502, content_type="text/html"))
    assert isinstance(answer.error, errors.ServerError)
    assert "<h1>Bad gateway</h1>" in str(answer.error)
    assert "\n" not in str(answer.error)
    assert len(str(answer.error)) < 1500


@pytest.mark.parametrize("zone", [" GMT", ""])
async def test_retry_after_date_is_converted_to_seconds(
    server: Server, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # L67
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        date = formatdate(time.time() + 100, usegmt=True).removesuffix(" GMT") + zone
        answer = await ask(server, Reply([b"{}"], 429, {"retry-after": date}, JSON))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert isinstance(answer.error, errors.RateLimited)
    assert answer.error.retry_after == pytest.approx(100, abs=5)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "", "1,5", "²", "Mon, 99 Foo 2026 00:00:00 GMT"])
async def test_invalid_delay_is_ignored(server: Server, value: str) -> None:
    headers = {"retry-after": value.encode().decode("latin-1"), "retry-after-ms": value.encode().decode("latin-1")}
    answer = await ask(server, Reply([b"{}"], 429, headers, JSON))
    assert isinstance(answer.error, errors.RateLimited)
    assert answer.error.retry_after is None


async def test_retry_after_in_seconds_is_used_when_the_milliseconds_are_invalid(server: Server) -> None:
    answer = await ask(server, Reply([b"{}"], 429, {"retry-after-ms": "soon", "retry-after": "7"}, JSON))
    assert isinstance(answer.error, errors.RateLimited)
    assert answer.error.retry_after == 7


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_does_not_send_the_key_to_another_host(server: Server, status: int) -> None:
    async with start_server() as other, httpx.AsyncClient(follow_redirects=True) as client:
        # Use another host name, so that cookies and credentials of the first host do not apply.
        target = other.base_url.replace("127.0.0.1", "localhost") + "/chat/completions"
        server.answer(Reply([], status, {"location": target}))
        model = openai_chat("m", preset="azure", base_url=server.base_url, api_key="secret", http_client=client)
        answer = await collect(model.call(REQUEST))
        await model.aclose()
        assert isinstance(answer.error, errors.ProviderProtocolError)
        assert target in str(answer.error)
        assert "secret" not in str(answer.error)
        assert other.requests == []


@pytest.mark.parametrize("tokens", [1e400, -1, "12", [1], {"a": 1}, None, True, 10**30])
async def test_invalid_token_count_is_not_an_error(server: Server, tokens: Any) -> None:
    usage = (
        b'{"prompt_tokens": '
        + (b"1e400" if tokens == 1e400 else str(tokens).encode() if type(tokens) is int else orjson.dumps(tokens))
        + b"}"
    )
    answer = await ask(server, Reply(sse(delta("stop", content="Hello"), b'{"choices": [], "usage": ' + usage + b"}")))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"
