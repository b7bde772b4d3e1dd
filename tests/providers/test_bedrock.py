"""Claude on Bedrock: Anthropic events in AWS frames, and requests signed for AWS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from rxloop import errors
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import HTTPModel, Retry, anthropic_messages, find_model, find_price, resolve_model
from rxloop.providers.transport.stream_decoders import SSEDecoder
from support.http_server import REQUEST, Reply, Server, StreamResult, collect, streamed_text
from support.vendors.aws_events import chunk, message
from support.vendors.recordings import CORPUS, body, needs_recordings, recording

pytestmark = pytest.mark.usefixtures("transport")
MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
AWS = "application/vnd.amazon.eventstream"
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 3}},
]


def frame(payloads: list[bytes]) -> Reply:
    return Reply([chunk(payload, padding="abcdef") for payload in payloads], content_type=AWS)


async def ask(server: Server, reply: Reply, preset: str = "bedrock", **options: Any) -> StreamResult:
    server.answer(reply)
    options = {"api_key": "key", "retry": Retry(attempts=1), **options}
    model = anthropic_messages(MODEL, preset=preset, base_url=server.base_url, **options)
    answer = await collect(model.call(REQUEST))
    await model.aclose()
    return answer


def list_streamed_recordings() -> list[str]:
    return sorted(path.stem for path in (CORPUS / "exchanges").glob("*-msgs-s-*.json")) or ["nothing"]


@needs_recordings
@pytest.mark.parametrize("name", list_streamed_recordings())
async def test_recorded_response_has_the_same_events_in_aws_frames(server: Server, name: str) -> None:
    for exchange in recording(name)["exchanges"]:
        if exchange["response"]["status"] != 200:
            continue
        plain = body(exchange)
        decoder = SSEDecoder()
        payloads = [*decoder.feed(plain), *decoder.flush()]
        direct = await ask(server, Reply([plain]), "anthropic")
        answer = await ask(server, frame(payloads))
        assert answer.error is None
        assert join_deltas(answer) == join_deltas(direct)


def join_deltas(answer: StreamResult) -> list[Any]:
    """Return the events of an answer with adjacent deltas joined, because their number depends on the read size."""
    found: list[Any] = []
    for event in answer.events:
        fields = event.model_dump(exclude={"ts", "seq", "id"})
        joined = found and "delta" in fields and {**found[-1], "delta": ""} == {**fields, "delta": ""}
        if joined:
            found[-1]["delta"] += fields["delta"]
        else:
            found.append(fields)
    return found


async def test_response_without_streaming_is_read(server: Server) -> None:
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    reply = Reply([orjson.dumps(answer)], content_type="application/json")
    assert streamed_text(await ask(server, reply, stream=False)) == "Hello"
    assert server.requests[-1].path == f"/v1/model/{MODEL}/invoke"


async def test_bedrock_token_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "token")
    answer = await ask(server, frame([orjson.dumps(event) for event in EVENTS]), api_key=None)
    assert answer.error is None
    assert streamed_text(answer) == "Hello"
    assert server.requests[-1].headers["authorization"] == "Bearer token"


async def test_missing_credentials_error_names_both_options(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    answer = await ask(server, frame([]), api_key=None)
    assert type(answer.error) is errors.AuthenticationError
    assert "AWS_BEARER_TOKEN_BEDROCK, or pass api_key=, or pass sign=" in str(answer.error)


@pytest.mark.parametrize(
    ("status", "name", "words", "kind"),
    [
        (400, "ValidationException", "Input is too long for requested model.", errors.ContextLengthExceeded),
        (403, "ExpiredTokenException", "The security token is expired", errors.AuthenticationError),
        (429, "ThrottlingException", "Too many tokens, please wait", errors.RateLimited),
    ],
)
async def test_bedrock_error_becomes_a_provider_error(
    server: Server, status: int, name: str, words: str, kind: type[Exception]
) -> None:
    headers = {"x-amzn-ErrorType": f"{name}:http://internal.amazon.com/", "x-amzn-RequestId": "1-2-3"}
    reply = Reply([orjson.dumps({"message": words})], status, headers, "application/json")
    answer = await ask(server, reply)
    assert isinstance(answer.error, errors.ProviderError)
    assert type(answer.error) is kind
    assert answer.error.request_id == "1-2-3"
    assert words in str(answer.error)


async def test_exception_in_the_stream_keeps_the_text(server: Server) -> None:
    names = {":message-type": "exception", ":exception-type": "modelStreamErrorException"}
    pieces = frame([orjson.dumps(event) for event in EVENTS[:3]]).pieces
    reply = Reply([*pieces, message(b'{"message":"it broke"}', names)], content_type=AWS)
    answer = await ask(server, reply)
    assert type(answer.error) is errors.ServerError
    assert streamed_text(answer) == "Hello"


async def test_botocore_signature_covers_the_sent_request(server: Server) -> None:
    auth, requests, credentials = (
        pytest.importorskip(f"botocore.{name}", reason="botocore is not installed")
        for name in ("auth", "awsrequest", "credentials")
    )
    signer: Any = auth.SigV4Auth(credentials.Credentials("an-id", "a-secret", "a-session"), "bedrock", "eu-north-1")

    def sign(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        request: Any = requests.AWSRequest(method, url, headers=dict(headers), data=body)
        signer.add_auth(request)
        return dict(request.headers)

    answer = await ask(server, frame([orjson.dumps(event) for event in EVENTS]), sign=sign)
    assert answer.error is None
    (got,) = server.requests
    authorization = got.headers["authorization"]
    signed = re.search("SignedHeaders=([^,]*)", authorization)
    assert signed is not None
    names = {name: got.headers[name] for name in signed[1].split(";")}
    again: Any = requests.AWSRequest("POST", f"http://{got.headers['host']}{got.path}", headers=names, data=got.raw)
    again.context["timestamp"] = got.headers["x-amz-date"]
    expected = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert authorization.endswith(f"Signature={expected}")


PROFILE = "arn:aws:bedrock:eu-north-1:123456789012:application-inference-profile/a1b2c3d4e5f6"


# P33
@pytest.mark.parametrize("underlying", [MODEL, "claude-sonnet-4-5", f"eu.{MODEL}"])
@pytest.mark.parametrize("in_string", [True, False])
async def test_application_profile_is_treated_as_its_underlying_model(
    server: Server, underlying: str, in_string: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(frame([orjson.dumps(event) for event in EVENTS]))
    options: Any = {"api_key": "key", "retry": Retry(attempts=1), "base_url": server.base_url}
    if in_string:
        model = resolve_model(f"bedrock:{PROFILE}#{underlying}", **options)
        assert isinstance(model, HTTPModel)
    else:
        model = anthropic_messages(PROFILE, preset="bedrock", underlying_model=underlying, **options)
    known = anthropic_messages(MODEL, preset="bedrock", **options)
    request = REQUEST.replace(settings=ModelSettings(reasoning_effort="high"))
    answer = await collect(model.call(request))
    await collect(known.call(request))
    assert streamed_text(answer) == "Hello"
    profiled, direct = server.requests
    assert profiled.path.endswith(f"/model/{quote(PROFILE, safe=':@')}/invoke-with-response-stream")
    assert profiled.body == direct.body
    assert model.name == f"bedrock:{PROFILE}#{underlying}"
    assert find_price(model.name) == find_price(known.name) is not None
    found = find_model(model.name)
    assert found is not None
    assert found == find_model(known.name)
    assert "underlying_model" not in caplog.text
    for each in (model, known):
        await each.aclose()


# P33
def test_application_profile_without_underlying_model_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    anthropic_messages(PROFILE, preset="bedrock", api_key="key")
    assert "pass underlying_model=" in caplog.text
