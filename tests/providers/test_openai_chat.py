from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import reactivex as rx
from reactivex import operators as ops

from rxloop.errors import (
    AuthenticationError,
    ProviderConnectionError,
    ProviderTimeout,
    RateLimited,
    RxloopError,
    UnknownModel,
)
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event, UsageEvent
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import Preset, Retry, Timeouts, openai_chat
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    active_connections,
    chat_model,
    collect,
    delta,
    sse,
    streamed_text,
    text_reply,
)

pytestmark = pytest.mark.usefixtures("transport")

AT_ONCE = Retry(first=0)


async def test_call_sends_nothing_before_it_is_subscribed(server: Server) -> None:
    # L52
    provider = chat_model(server)
    source = provider.call(REQUEST)
    await asyncio.sleep(0.02)
    assert server.connections == 0
    await collect(source)
    assert len(server.requests) == 1
    await provider.aclose()


async def test_views_of_one_call_share_a_request(server: Server) -> None:
    # L53
    server.answer(text_reply("a", "b"))
    provider = chat_model(server)
    shared = provider.call(REQUEST).pipe(ops.publish())
    kinds = shared.pipe(ops.map(lambda event: event.kind))
    both = asyncio.ensure_future(collect(rx.merge(kinds, shared.pipe(ops.count()))))
    await asyncio.sleep(0)
    shared.connect()
    assert (await both).events == ["content-delta", "content-delta", "content-complete", 3]
    assert len(server.requests) == 1
    await provider.aclose()


async def test_each_subscription_sends_its_own_request(server: Server) -> None:
    server.answer(text_reply("a"))
    provider = chat_model(server)
    source = provider.call(REQUEST)
    assert [streamed_text(await collect(source)) for _ in range(3)] == ["a", "a", "a"]
    assert len(server.requests) == 3
    await provider.aclose()


async def test_connection_is_reused_after_done(server: Server) -> None:
    server.answer(text_reply("a"))
    provider = chat_model(server)
    for _ in range(5):
        await collect(provider.call(REQUEST))
    assert server.connections == 1
    await provider.aclose()


async def test_server_that_keeps_the_stream_open_after_done_does_not_delay_the_answer(server: Server) -> None:
    server.answer(text_reply("a", end="hang"))
    provider = chat_model(server)
    events: list[Event] = []
    complete = asyncio.Event()

    def on_next(event: Event) -> None:
        events.append(event)
        if isinstance(event, ContentCompleteEvent):
            complete.set()

    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    provider.call(REQUEST).subscribe(on_next, end.set_exception, lambda: end.set_result(None))
    async with asyncio.timeout(0.5):
        await complete.wait()
    async with asyncio.timeout(3):
        await end
        await server.all_closed.wait()
    await provider.aclose()


async def test_usage_precedes_the_message(server: Server) -> None:
    # L64
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    server.answer(Reply(sse(delta(content="He"), delta(content="llo"), delta("stop"), usage)))
    provider = chat_model(server)
    answer = await collect(provider.call(REQUEST))
    assert answer.error is None
    assert [type(e) for e in answer.events] == [ContentDeltaEvent, ContentDeltaEvent, UsageEvent, ContentCompleteEvent]
    assert {event.step for event in answer.events} == {"1"}
    await provider.aclose()


async def test_answer_is_independent_of_read_boundaries(server: Server) -> None:
    # L70
    stream = b"".join(sse(delta(content="smørbrød 🍞"), delta(content="\n→"), delta("stop")))
    provider = chat_model(server)
    for size in (1, 2, 3, 7, 50):
        server.answer(Reply([stream[i : i + size] for i in range(0, len(stream), size)]))
        server.requests.clear()
        assert streamed_text(await collect(provider.call(REQUEST))) == "smørbrød 🍞\n→"
    await provider.aclose()


@pytest.mark.parametrize("end", ["end", "drop"])
async def test_connection_that_ends_early_is_an_error_that_keeps_the_text(server: Server, end: Any) -> None:
    # L66
    server.answer(text_reply("Hel", end=end, finished=False))
    provider = chat_model(server, retry=AT_ONCE)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderConnectionError)
    assert answer.error.retryable
    assert streamed_text(answer) == "Hel"
    assert len(server.requests) == 1
    assert not any(isinstance(event, ContentCompleteEvent) for event in answer.events)
    await provider.aclose()


async def test_connection_that_breaks_after_the_finish_reason_is_a_normal_end(server: Server) -> None:
    # L66
    server.answer(Reply(sse(delta("stop", content="Hi"), done=False), end="drop"))
    provider = chat_model(server)
    answer = await collect(provider.call(REQUEST))
    assert answer.error is None
    assert answer.events[-1].content == "Hi"
    await provider.aclose()


async def test_error_in_the_stream_fails_the_call_and_keeps_the_connection(server: Server) -> None:
    # L66
    bad = sse(delta(content="Hel"), {"error": {"code": 429, "message": "slow down"}}, done=False)
    server.answer(Reply([b"".join(bad)]), text_reply("ok"))
    provider = chat_model(server)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, RateLimited)
    assert streamed_text(answer) == "Hel"
    assert active_connections(provider) == []
    assert streamed_text(await collect(provider.call(REQUEST))) == "ok"
    await provider.aclose()


@pytest.mark.parametrize(
    "first",
    [
        Reply([b'{"error": {"message": "busy"}}'], status=429, content_type="application/json"),
        Reply([b"<html>"], status=503, content_type="text/html"),
        Reply(end="drop"),
        Reply([b'data: {"error": {"message": "oops"}}\n\n']),
    ],
)
async def test_failure_before_the_first_event_is_retried(server: Server, first: Reply) -> None:
    # L67
    server.answer(first, first, text_reply("third", " time"))
    provider = chat_model(server, retry=AT_ONCE)
    answer = await collect(provider.call(REQUEST))
    assert answer.error is None
    assert streamed_text(answer) == "third time"
    assert len(server.requests) == 3
    await provider.aclose()


async def test_busy_vendor_fails_the_call_with_the_requested_delay(server: Server) -> None:
    # L67
    reply = Reply([b'{"error": {"message": "busy"}}'], 429, {"retry-after": "0"}, "application/json")
    server.answer(reply)
    provider = chat_model(server, retry=Retry(attempts=4))
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, RateLimited)
    assert answer.error.retry_after == 0
    assert len(server.requests) == 4
    await provider.aclose()


async def test_refusal_is_not_retried(server: Server) -> None:
    server.answer(Reply([b'{"error": {"message": "no such model"}}'], status=404, content_type="application/json"))
    provider = chat_model(server, retry=AT_ONCE)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, UnknownModel)
    assert "no such model" in str(answer.error)
    assert len(server.requests) == 1
    await provider.aclose()


async def test_refused_connection_error_suggests_a_remedy() -> None:
    preset = Preset(name="ollama", base_url="http://127.0.0.1:9/v1", hint="Start it with `ollama serve`.")
    provider = openai_chat("m", preset=preset, retry=AT_ONCE)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderConnectionError)
    assert "ollama serve" in str(answer.error)
    await provider.aclose()


@pytest.mark.parametrize("reply", [text_reply("Hel", end="hang", finished=False), Reply(end="hang")])
async def test_silence_ends_at_the_idle_timeout(server: Server, reply: Reply) -> None:
    # L68
    server.answer(reply)
    provider = chat_model(server, timeout=Timeouts(idle=0.1), retry=AT_ONCE)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderTimeout)
    assert len(server.requests) == 1
    async with asyncio.timeout(1):
        await server.all_closed.wait()
    await provider.aclose()


async def test_call_ends_at_the_total_time(server: Server) -> None:
    server.answer(Reply(end="hang"))
    provider = chat_model(server, timeout=Timeouts(total=0.1))
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderTimeout)
    assert "0.1 s" in str(answer.error)
    await provider.aclose()


async def test_retry_delay_beyond_the_total_time_fails_at_once(server: Server) -> None:
    server.answer(Reply(status=503))
    provider = chat_model(server, timeout=Timeouts(total=0.1), retry=Retry(first=10, jitter=0))
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderTimeout)
    assert "0.1 s" in str(answer.error)
    assert len(server.requests) == 1
    await provider.aclose()


async def test_missing_key_error_names_the_variable_and_sends_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACME_KEY", raising=False)
    preset = Preset(name="acme", base_url=server.base_url, key_env="ACME_KEY")
    provider = openai_chat("m", preset=preset)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, AuthenticationError)
    assert "ACME_KEY" in str(answer.error)
    assert server.connections == 0
    monkeypatch.setenv("ACME_KEY", " secret\n")
    server.answer(text_reply("a"))
    assert (await collect(provider.call(REQUEST))).error is None
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    await provider.aclose()


async def test_headers_of_preset_provider_and_settings_are_merged(server: Server) -> None:
    server.answer(text_reply("a"))
    preset = Preset(name="acme", base_url=server.base_url, headers={"X-A": "1", "X-B": "1", "X-C": "1"})
    provider = openai_chat("m", preset=preset, api_key="k", headers={"x-b": "2", "X-C": "2"})
    settings = ModelSettings(headers={"x-c": "3"})
    await collect(provider.call(REQUEST.replace(settings=settings)))
    headers = server.requests[0].headers
    assert [headers[name] for name in ("x-a", "x-b", "x-c")] == ["1", "2", "3"]
    assert (headers["authorization"], headers["accept-encoding"]) == ("Bearer k", "identity")
    assert server.requests[0].path == "/v1/chat/completions"
    await provider.aclose()


async def test_answer_without_streaming_is_read(server: Server) -> None:
    body = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    server.answer(Reply([body], content_type="application/json"))
    provider = chat_model(server, stream=False)
    answer = await collect(provider.call(REQUEST))
    assert [type(e) for e in answer.events] == [ContentDeltaEvent, ContentCompleteEvent]
    assert server.requests[0].body["stream"] is False
    await provider.aclose()


async def test_endpoint_that_ignores_the_stream_option_is_supported(server: Server) -> None:
    body = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    server.answer(
        Reply([body], content_type="application/json"),
        text_reply("Hi"),
        Reply(text_reply("Hi").pieces, content_type=""),
    )
    for stream in (True, False, True):
        provider = chat_model(server, stream=stream)
        assert streamed_text(await collect(provider.call(REQUEST))) == "Hi"
        await provider.aclose()


async def test_custom_client_is_used_and_stays_open(server: Server) -> None:
    server.answer(text_reply("a"))
    async with httpx.AsyncClient(headers={"x-mine": "yes"}) as own:
        provider = chat_model(server, http_client=own)
        await collect(provider.call(REQUEST))
        await provider.aclose()
        assert not own.is_closed
    assert server.requests[0].headers["x-mine"] == "yes"
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderConnectionError)
    assert "closed" in str(answer.error)


async def test_invalid_url_in_the_environment_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_URL", "ftp://acme")
    preset = Preset(name="acme", base_url="http://acme/v1", url_env="ACME_URL")
    answer = await collect(openai_chat("m", preset=preset).call(REQUEST))
    assert isinstance(answer.error, RxloopError)
    assert "ftp://acme" in str(answer.error)


async def test_hook_of_a_custom_client_may_read_the_answer_and_sign_the_request(server: Server) -> None:
    server.answer(text_reply("Hello ", "you"))
    seen: list[bytes] = []

    async def sign(request: httpx.Request) -> None:
        request.headers["x-signed"] = str(len(request.content))

    async def read(response: httpx.Response) -> None:
        seen.append(await response.aread())

    async with httpx.AsyncClient(event_hooks={"request": [sign], "response": [read]}) as own:
        provider = chat_model(server, http_client=own)
        for _ in range(2):
            answer = await collect(provider.call(REQUEST))
            assert (answer.error, streamed_text(answer)) == (None, "Hello you")
    assert len(seen) == 2
    assert [request.headers["x-signed"] for request in server.requests] == [
        request.headers["content-length"] for request in server.requests
    ]
