"""Server, model and id of answers in `content-complete` events."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.messages import ResponseInfo
from rxloop.providers import anthropic_messages, google_gemini, openai_chat, openai_responses
from rxloop.providers.failures import find_server
from support.http_server import REQUEST, Reply, collect, sse, start_server
from support.vendors.native import NATIVE
from support.vendors.recordings import (
    body,
    make_chat,
    needs_recordings,
    recording,
    recording_names,
    replay_server,
)

MAKERS = {"chat": openai_chat, "msgs": anthropic_messages, "resp": openai_responses, "gen": google_gemini}

MESSAGE = {"type": "message", "id": "r1", "model": "m-2", "role": "assistant", "content": []}
RESPONSE = {
    "id": "r1",
    "model": "m-2",
    "status": "completed",
    "output": [{"type": "message", "id": "o", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}],
}
CHUNK = {
    "responseId": "r1",
    "modelVersion": "m-2",
    "usageMetadata": {"promptTokenCount": 1},
    "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
}
STREAMS: dict[str, list[Any]] = {
    "chat": [
        {"id": "r1", "model": "m-2", "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "r1", "model": "m-2", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ],
    "msgs": [
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
    "resp": [{"type": "response.completed", "response": RESPONSE}],
    "gen": [CHUNK],
}
ANSWERS: dict[str, Any] = {
    "chat": {
        "id": "r1",
        "model": "m-2",
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
    },
    "msgs": {**MESSAGE, "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
    "resp": RESPONSE,
    "gen": CHUNK,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", STREAMS)
async def test_message_contains_its_origin(api: str, stream: bool) -> None:
    answer = orjson.dumps(ANSWERS[api])
    reply = Reply(sse(*STREAMS[api])) if stream else Reply([answer], content_type="application/json")
    async with start_server() as server:
        server.answer(reply)
        make: Any = MAKERS[api]
        model = make("m", base_url=server.base_url, api_key="secret-key", stream=stream)
        message = (await collect(model.call(REQUEST))).events[-1]
        await model.aclose()
    assert isinstance(message, ContentCompleteEvent)
    expected = ResponseInfo(id="r1", model="m-2", server_address="127.0.0.1", server_port=server.port, streamed=stream)
    assert message.response == expected
    assert message.to_public().response is None  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.z.ai/v4/chat?key=s3cret", ("api.z.ai", 443)),
        ("http://user:s3cret@[::1]:8080/v1", ("::1", 8080)),
        ("https://host:port/", (None, None)),
        ("", (None, None)),
    ],
)
def test_server_is_the_host_and_the_port_of_the_url(url: str, expected: tuple[str | None, int | None]) -> None:
    assert find_server(url) == expected


@needs_recordings
@pytest.mark.timeout(120)
@pytest.mark.parametrize("api", STREAMS)
async def test_recorded_answers_have_their_id_and_model(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "key")
    id_name, model_name = ("responseId", "modelVersion") if api == "gen" else ("id", "model")
    wrong: list[Any] = []
    count = 0
    async with replay_server(make=make_chat if api == "chat" else NATIVE[api].make) as vendor:
        for name in recording_names(api=api):
            conversation = recording(name)
            for number, exchange in enumerate(conversation["exchanges"]):
                vendor.replay_conversation(conversation, number)
                message = (await collect(vendor.provider(exchange).call(REQUEST))).events[-1:]
                if not message or not isinstance(message[0], ContentCompleteEvent):
                    continue
                origin, raw = message[0].response, body(exchange).replace(b" ", b"")
                assert origin is not None
                count += 1
                # A call has an id as well, so a missing id of the answer is not detected.
                is_missing = origin.model is None and re.search(f'"{model_name}":"[^"]'.encode(), raw) is not None
                pairs = [(id_name, origin.id), (model_name, origin.model)]
                if is_missing or not all(f'"{key}":"{text}"'.encode() in raw for key, text in pairs if text):
                    wrong.append((name, number, origin))
    assert wrong == []
    assert count > 10
