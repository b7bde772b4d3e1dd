from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from rxloop import Agent
from rxloop.demo import BASE_URL
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolCallDeltaEvent, UsageEvent
from rxloop.protocol.messages import Message
from rxloop.testing import Conversation, OfflineModel, Reply, demo_model

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def make_client(model: OfflineModel) -> httpx.AsyncClient:
    """Create an HTTP client connected to the model."""
    return httpx.AsyncClient(base_url=BASE_URL, transport=httpx.MockTransport(model.handle))


@pytest.fixture
def offline() -> OfflineModel:
    return OfflineModel()


@pytest.fixture
async def client(offline: OfflineModel) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(offline) as client:
        yield client


def make_body(question: str, *, stream: bool = False, tools: list[Any] | None = None) -> dict[str, Any]:
    asked = {"model": "any", "messages": [{"role": "user", "content": question}], "stream": stream}
    return asked | ({"tools": tools} if tools else {})


async def parse_chunks(client: httpx.AsyncClient, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a stream, which must end with [DONE]."""
    async with client.stream("POST", "/chat/completions", json=asked) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_stream_contains_words_and_ends_with_the_usage(client: httpx.AsyncClient) -> None:
    *parts, last = await parse_chunks(client, make_body("What is 17 * 23?", stream=True))
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "17", " *", " 23", " is", " 391."]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens"] > 0


async def test_response_without_streaming_has_the_same_content(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/chat/completions", json=make_body("What is 17 * 23?"))).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "any"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "17 * 23 is 391."}
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_stream_contains_fragments_of_call_arguments(client: httpx.AsyncClient) -> None:
    parts = await parse_chunks(client, make_body("Weather in Oslo and Bergen?", stream=True, tools=[WEATHER]))
    made = [call for part in parts if part["choices"] for call in part["choices"][0]["delta"].get("tool_calls", [])]
    joined = ["".join(call["function"]["arguments"] for call in made if call["index"] == index) for index in (0, 1)]
    assert [json.loads(text) for text in joined] == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert [call["id"] for call in made if "id" in call] == ["call_1", "call_2"]
    assert len(made) > 4
    assert parts[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_response_without_streaming_has_complete_call_arguments(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/chat/completions", json=make_body("Weather in Oslo?", tools=[WEATHER]))).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
    }
    assert answer["choices"][0]["message"]["content"] is None


async def test_custom_rules_take_precedence_and_can_reason() -> None:
    def rule(conversation: Conversation) -> Reply | None:
        return Reply("Aye.", reasoning="I think so.") if "captain" in conversation.question else None

    async with make_client(OfflineModel([rule])) as client:
        parts = await parse_chunks(client, make_body("Yes, captain?", stream=True))
        deltas = [part["choices"][0]["delta"] for part in parts if part["choices"]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I think so."
        assert parts[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
        answer = (await client.post("/chat/completions", json=make_body("Yes, captain?"))).json()
        assert answer["choices"][0]["message"]["reasoning_content"] == "I think so."
        answer = (await client.post("/chat/completions", json=make_body("What is 1 + 1?"))).json()
        assert answer["choices"][0]["message"]["content"] == "1 + 1 is 2."


async def test_model_list(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/models")).json()
    assert [model["id"] for model in answer["data"]] == ["offline"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/nothing", b"", 404),
        ("GET", "/chat/completions", b"", 405),
        ("POST", "/chat/completions", b"{", 400),
        ("POST", "/chat/completions", b"[]", 400),
        ("POST", "/chat/completions", b'{"messages": 5}', 400),
        ("POST", "/chat/completions", b'{"messages": [5]}', 400),
    ],
)
async def test_invalid_request_is_rejected_with_json(
    client: httpx.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    response = await client.request(method, path, content=content)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert (await client.get("/models")).status_code == 200


async def test_exception_of_a_rule_is_a_server_error_that_names_it() -> None:
    def rule(conversation: Conversation) -> Reply | None:
        raise RuntimeError("broken rule")

    async with make_client(OfflineModel([rule])) as client:
        response = await client.post("/chat/completions", json=make_body("Hi"))
        assert response.status_code == 500
        assert "RuntimeError: broken rule" in response.json()["error"]["message"]


async def test_chunked_request_body_is_read(client: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for part in (b'{"messages": [{"role": "user", ', b'"content": "What is 2 + 2?"}]}'):
            yield part

    answer = (await client.post("/chat/completions", content=pieces())).json()
    assert answer["choices"][0]["message"]["content"] == "2 + 2 is 4."


async def test_disconnected_client_closes_its_stream() -> None:
    model = OfflineModel(delay=3600)
    async with make_client(model) as client:
        async with client.stream("POST", "/chat/completions", json=make_body("Hi", stream=True)) as response:
            await anext(response.aiter_bytes())
            assert model.open == 1
        assert model.open == 0
        assert (await client.get("/models")).status_code == 200


async def test_provider_parses_the_responses(offline: OfflineModel) -> None:
    tool = ToolDefinition("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
    provider = offline.provider()
    events: list[Event] = []
    request = ModelRequest(messages=[Message.user("Weather in Oslo?")], tools=(tool,))
    await provider.call(request).pipe(_collect_text(events))
    await provider.aclose()
    message = events[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", {"city": "Oslo"})]
    assert sum(isinstance(event, ToolCallDeltaEvent) for event in events) > 1
    assert sum(isinstance(event, UsageEvent) for event in events) == 1
    assert offline.requests[0]["tools"][0]["function"]["name"] == "get_weather"


def _collect_text(events: list[Event]) -> Any:
    from reactivex import operators

    return operators.do_action(events.append)


@pytest.mark.parametrize(("key", "model"), [("ZAI_API_KEY", "zai:glm-4.7"), ("OPENAI_API_KEY", "openai:gpt-5")])
def test_demo_model_is_a_real_model_if_a_key_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str, model: str
) -> None:
    for name in ("ZAI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(key, "secret")
    assert demo_model() == model
    assert capsys.readouterr().err == ""


async def test_demo_model_without_a_key_prints_a_note_and_is_offline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZAI_API_KEY", " ")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = demo_model(delay=0)
    assert capsys.readouterr().err == "No key found (ZAI_API_KEY, OPENAI_API_KEY): using the offline model.\n"
    assert isinstance(model, Provider)
    answer = await model.call(ModelRequest(messages=[Message.user("What is 6 * 7?")]))
    await model.aclose()
    assert isinstance(answer, ContentCompleteEvent)
    assert answer.content == "6 * 7 is 42."


def test_provider_works_in_several_event_loops_and_threads() -> None:
    offline = OfflineModel(delay=0.01)
    agent = Agent(offline.provider())
    assert [agent.run_sync("What is 6 * 7?").output for _ in range(2)] == ["6 * 7 is 42."] * 2
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(agent.run_sync, "What is 6 * 7?") for _ in range(2)]
        assert [run.result().output for run in runs] == ["6 * 7 is 42."] * 2
    assert len(offline.requests) == 4
    assert offline.open == 0


async def test_deltas_are_published_individually() -> None:
    offline = OfflineModel(delay=0.01)
    open_streams = [offline.open async for _ in Agent(offline.provider()).run("What is 17 * 23?").text()]
    assert open_streams == [1] * 5


def test_synchronous_client_can_request_a_complete_response() -> None:
    with httpx.Client(base_url=BASE_URL, transport=httpx.MockTransport(OfflineModel().handle)) as client:
        answer = client.post("/chat/completions", json=make_body("What is 6 * 7?")).json()
    assert answer["choices"][0]["message"]["content"] == "6 * 7 is 42."
