"""Recorded responses of native APIs, over HTTP and in small pieces, compared with the SDKs of the vendors.

As in `test_recordings.py`, each exchange is tested once, or in all variants with RXLOOP_RECORDINGS=all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from rxloop.errors import AuthenticationError, BadRequest, ProviderError, RateLimited, UnknownModel
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    LLMNoticeEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.providers.transport import Transport
from support.http_server import REQUEST, StreamResult, collect
from support.vendors.native import NATIVE, NativeApi
from support.vendors.recordings import Vendor, needs_recordings, oracle, recording, recording_names, replay_server
from support.vendors.replay_variants import ALL_VARIANTS, SHAPES, replay_variants

KINDS: dict[int, type[ProviderError]] = {
    400: BadRequest,
    401: AuthenticationError,
    404: UnknownModel,
    429: RateLimited,
}
NOT_OURS = (": messages: ", ": path ")
"""Request differences that codec tests cover: messages and paths."""
pytestmark = [needs_recordings, pytest.mark.timeout(1800 if ALL_VARIANTS else 120)]


def summarize_failure(answer: StreamResult, expected: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    broken = expected.get("error_mid_stream")
    if answer.error is None or not (expected.get("http_error") or broken):
        return [("error", answer.error, expected)]
    body = (broken or expected).get("body") or {}
    message = (body.get("error") or body).get("message") or (broken or expected)["message"]
    pairs = {
        "kind": isinstance(answer.error, KINDS.get(expected.get("status", 0), ProviderError)),
        "message": " ".join(message.split())[:500] in str(answer.error),
        "complete": not any(isinstance(event, ContentCompleteEvent) for event in answer.events),
    }
    return [(name, repr(answer.error), message) for name, right in pairs.items() if not right]


def find_differences(answer: StreamResult, expected: dict[str, Any], native: NativeApi) -> list[tuple[str, Any, Any]]:
    if "http_error" in expected or expected.get("error_mid_stream") or answer.error is not None:
        return summarize_failure(answer, expected)
    theirs = native.read(expected)
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    calls = message.tool_calls
    pairs = {
        "text": (message.content, theirs.text),
        "deltas": (_joined(answer, ContentDeltaEvent), message.content),
        "reasoning": (message.reasoning or "", theirs.reasoning),
        "thought deltas": (_joined(answer, ThoughtDeltaEvent), message.reasoning or ""),
        "calls": ([(call.name, call.arguments) for call in calls], [each[1:] for each in theirs.calls]),
        "ids": (
            [call.id for call in calls],
            [each[0] or ours.id for ours, each in zip(calls, theirs.calls, strict=False)],
        ),
        "fragments": (_arguments(answer), [call.arguments for call in calls]),
        "finish": (message.raw_finish_reason, theirs.finish),
        "usage": (_usage(answer), [theirs.usage] if theirs.usage else []),
        "passed over": ([event.message for event in answer.events if isinstance(event, LLMNoticeEvent)], []),
        "calls of the deltas": (
            {(event.tool_call_id, event.name) for event in answer.events if isinstance(event, ToolCallDeltaEvent)},
            {(call.id, call.name) for call in calls},
        ),
        "calls without an id": ([call for call in calls if not call.id], []),
        "empty deltas": (any(event.delta == "" for event in answer.events if _is_delta(event)), False),
    }
    return [(name, ours, other) for name, (ours, other) in pairs.items() if ours != other]


def _is_delta(event: Any) -> bool:
    return isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent)


def _joined(answer: StreamResult, kind: type[ContentDeltaEvent | ThoughtDeltaEvent]) -> str:
    return "".join(event.delta for event in answer.events if isinstance(event, kind))


def _arguments(answer: StreamResult) -> list[Any]:
    joined: dict[int, str] = {}
    for event in answer.events:
        if isinstance(event, ToolCallDeltaEvent):
            joined[event.index] = joined.get(event.index, "") + event.fragment
    return [orjson.loads(text) if text else {} for _, text in sorted(joined.items())]


def _usage(answer: StreamResult) -> list[tuple[int, ...]]:
    counted = [event.usage for event in answer.events if isinstance(event, UsageEvent)]
    return [
        (each.input_tokens, each.output_tokens, each.cached_tokens, each.cache_write_tokens, each.reasoning_tokens)
        for each in counted
    ]


async def check_exchange(vendor: Vendor, native: NativeApi, name: str, number: int, wrong: list[Any]) -> bool:
    """Compare an exchange in its variants."""
    conversation, expected = recording(name), oracle(name)[number]
    exchange = conversation["exchanges"][number]
    before = len(wrong)
    for mode, shape in replay_variants(conversation, number):
        vendor.replay_conversation(conversation, number, mode=mode, seed=number, **SHAPES[shape])
        answer = await collect(vendor.provider(exchange).call(REQUEST))
        found = find_differences(answer, expected, native)
        found += [
            ("request", each, None) for each in vendor.replay.problems if not any(words in each for words in NOT_OURS)
        ]
        wrong += [
            (name, number, mode, shape, *each)
            for each in found
            if f"{name}/{number}/{each[0]}" not in native.expected_differences
        ]
    return len(wrong) == before


async def check_all(api: str, transport: Transport) -> None:
    """Compare every exchange of an API."""
    native = NATIVE[api]
    wrong: list[Any] = []
    counts = Counter[bool]()
    async with replay_server(transport, native.make) as vendor:
        for name in recording_names(api=native.api):
            for number in range(len(recording(name)["exchanges"])):
                counts[await check_exchange(vendor, native, name, number, wrong)] += 1
    print(f"{native.api}: {counts[True]} of {counts.total()} exchanges")
    assert counts.total() > 0
    assert wrong == []


@pytest.mark.parametrize("api", NATIVE)
async def test_recorded_answers_match_the_sdk(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_keys(monkeypatch)
    await check_all(api, "httpx")


@pytest.mark.parametrize("api", NATIVE)
async def test_recorded_answers_match_the_sdk_over_aiohttp(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_keys(monkeypatch)
    await check_all(api, "aiohttp")


def _set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "a-key")
