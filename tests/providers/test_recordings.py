"""Recorded vendor responses over HTTP, compared with the openai SDK.

Each exchange is tested in variants derived from its name, or in all variants with RXLOOP_RECORDINGS=all, which takes
minutes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from rxloop.errors import (
    AuthenticationError,
    BadRequest,
    ContentFiltered,
    ProviderError,
    RateLimited,
    UnknownModel,
)
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.finish import MALFORMED_REASON
from rxloop.providers.transport import Transport
from support.http_server import REQUEST, StreamResult, collect
from support.vendors.recordings import (
    Vendor,
    body,
    choice,
    is_written_by_hand,
    needs_recordings,
    oracle,
    recorded_vendors,
    recording,
    recording_names,
    replay_server,
)
from support.vendors.replay_variants import ALL_VARIANTS, MODES, SHAPES, replay_variants

KINDS: dict[int | None, type[ProviderError]] = {
    None: ProviderError,
    400: BadRequest,
    401: AuthenticationError,
    404: UnknownModel,
    429: RateLimited,
}
pytestmark = [needs_recordings, pytest.mark.timeout(1800 if ALL_VARIANTS else 120)]


def join_arguments(answer: StreamResult) -> dict[int, str]:
    joined: dict[int, str] = {}
    for event in answer.events:
        if isinstance(event, ToolCallDeltaEvent):
            joined[event.index] = joined.get(event.index, "") + event.fragment
    return joined


def join_details(exchange: Any) -> str:
    """Return the reasoning found only in `reasoning_details`, which the SDK does not read."""
    chunks = [orjson.loads(line[6:]) for line in body(exchange).splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(detail.get("text") or "" for delta in deltas for detail in delta.get("reasoning_details") or ())


def summarize_failure(answer: StreamResult, expected: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    broken, filtered = expected.get("error_mid_stream"), expected.get("error_in_200_body")
    if broken and answer.error is None:
        # Malformed calls end the message, so that the model is called again.
        ends = [event for event in answer.events if isinstance(event, ContentCompleteEvent)]
        reasons = [event.metadata.get(MALFORMED_REASON, "") for event in ends]
        if len(reasons) == 1 and broken["message"] in reasons[0]:
            return []
    if not (expected.get("http_error") or broken or filtered) or answer.error is None:
        return [("error", answer.error, expected)]
    message = (broken or filtered or expected)["message"].removeprefix(f"Error code: {expected.get('status')} - ")
    kind = ContentFiltered if filtered else KINDS[expected.get("status")]
    pairs = {
        "kind": (isinstance(answer.error, kind), True),
        "message": (message in str(answer.error), True),
        "complete": (any(isinstance(event, ContentCompleteEvent) for event in answer.events), False),
    }
    if broken:
        # The received text is in the events.
        partial = choice(expected)
        pairs["text"] = (_joined(answer, ContentDeltaEvent) == (partial["text"] or ""), True)
        pairs["reasoning"] = (_joined(answer, ThoughtDeltaEvent) == (partial["reasoning"] or ""), True)
    return [(name, repr(answer.error), message) for name, (ours, theirs) in pairs.items() if ours != theirs]


def find_differences(answer: StreamResult, expected: dict[str, Any], exchange: Any) -> list[tuple[str, Any, Any]]:
    fails = "http_error" in expected or expected.get("error_mid_stream") or expected.get("error_in_200_body")
    if fails or answer.error is not None:
        return summarize_failure(answer, expected)
    theirs = choice(expected)
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    pairs = {
        # Refusals become text.
        "text": (message.content, theirs["text"] or theirs.get("refusal") or ""),
        "deltas": (_joined(answer, ContentDeltaEvent), message.content),
        "reasoning": (
            message.reasoning or "",
            theirs["reasoning"] or (join_details(exchange) if exchange["stream"] else ""),
        ),
        "thought deltas": (_joined(answer, ThoughtDeltaEvent), message.reasoning or ""),
        "thoughts": (
            [event.content for event in answer.events if isinstance(event, ThoughtStreamEvent)],
            [message.reasoning] if message.reasoning else [],
        ),
        "calls": (
            [(call.name, call.raw or "") for call in message.tool_calls],
            [(name, arguments or "") for _, name, arguments in theirs["tool_calls"]],
        ),
        "ids": (
            [call.id for call in message.tool_calls],
            # We generate missing ids.
            [given or ours.id for ours, (given, _, _) in zip(message.tool_calls, theirs["tool_calls"], strict=False)],
        ),
        "fragments": (
            [text for _, text in sorted(join_arguments(answer).items())],
            [call.raw or "" for call in message.tool_calls],
        ),
        "finish": (message.raw_finish_reason, theirs["finish_reason"]),
        "usage": (_our_usage(answer), _their_usage(expected)),
    }
    found: list[tuple[str, Any, Any]] = [(name, ours, other) for name, (ours, other) in pairs.items() if ours != other]
    given = {(event.tool_call_id, event.name) for event in answer.events if isinstance(event, ToolCallDeltaEvent)}
    if given != {(call.id, call.name) for call in message.tool_calls}:
        found.append(("calls of the deltas", given, message.tool_calls))
    if not all(call.id for call in message.tool_calls):
        found.append(("a call without an id", message.tool_calls, None))
    if any(event.delta == "" for event in answer.events if isinstance(event, ContentDeltaEvent)):
        found.append(("an empty delta", None, None))
    return found


def _joined(answer: StreamResult, kind: type[ContentDeltaEvent | ThoughtDeltaEvent]) -> str:
    return "".join(event.delta for event in answer.events if isinstance(event, kind))


def _our_usage(answer: StreamResult) -> list[tuple[int, ...]]:
    counted = [event.usage for event in answer.events if isinstance(event, UsageEvent)]
    return [(each.input_tokens, each.output_tokens, each.cached_tokens, each.reasoning_tokens) for each in counted]


def _their_usage(expected: dict[str, Any]) -> list[tuple[int, ...]]:
    last = expected.get("hand_usage_last")
    # The SDK does not read the field used by Groq.
    usage = (last if is_written_by_hand(expected) else None) or expected.get("usage") or last
    if not usage:
        return []
    read, written = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    prompt, completion, reasoning = (
        usage["prompt_tokens"],
        usage["completion_tokens"],
        written.get("reasoning_tokens") or 0,
    )
    # xAI, and Vercel for Gemini, do not count reasoning as completion tokens. The SDK does not correct this.
    if reasoning > completion or (reasoning and usage["total_tokens"] == prompt + completion + reasoning):
        completion += reasoning
    return [(prompt, completion, read.get("cached_tokens") or 0, reasoning)]


async def check_exchange(vendor: Vendor, name: str, number: int, wrong: list[Any], counts: Counter[str]) -> bool:
    """Compare an exchange in its variants."""
    conversation, expected = recording(name), oracle(name)[number]
    exchange = conversation["exchanges"][number]
    before = len(wrong)
    for mode, shape in replay_variants(conversation, number):
        vendor.replay_conversation(conversation, number, mode=mode, seed=number, **SHAPES[shape])
        answer = await collect(vendor.provider(exchange).call(REQUEST))
        found = find_differences(answer, expected, exchange)
        # The messages differ from the recorded request, but method, path and stream must be the same.
        found += [("request", each, None) for each in vendor.replay.problems if ": messages: " not in each]
        wrong += [(name, number, mode, shape, *each) for each in found]
        counts[mode] += 1
        counts[shape] += 1
    return len(wrong) == before


async def check_all(transport: Transport, who: str, step: int = 1) -> None:
    """Compare every exchange, or every n-th conversation."""
    wrong: list[Any] = []
    counts = Counter[str]()
    done = good = 0
    async with replay_server(transport) as vendor:
        for name in recording_names(who)[::step]:
            conversation = recording(name)
            if conversation["api"] != "openai-chat":
                continue
            for number in range(len(conversation["exchanges"])):
                done += 1
                good += await check_exchange(vendor, name, number, wrong, counts)
    print(f"{who}: {good} of {done} exchanges; {dict(counts)}")
    assert done > 0
    assert wrong == []


@pytest.mark.parametrize("who", recorded_vendors())
async def test_recorded_answers_match_the_sdk(who: str) -> None:
    await check_all("httpx", who)


@pytest.mark.parametrize("who", recorded_vendors())
async def test_recorded_answers_match_the_sdk_over_aiohttp(who: str) -> None:
    await check_all("aiohttp", who, 1 if ALL_VARIANTS else 3)


def test_recording_names_select_every_variant_many_times() -> None:
    drawn = Counter[str]()
    for name in recording_names():
        conversation = recording(name)
        for number, exchange in enumerate(conversation["exchanges"]):
            if exchange["stream"] and exchange["response"]["status"] < 400:
                for mode, shape in replay_variants(conversation, number):
                    drawn.update((mode, shape))
    assert {name: count for name, count in drawn.items() if count >= 10}.keys() == {*MODES, *SHAPES}
