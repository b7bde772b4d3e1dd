"""Long-lived cache tokens, from usage to cost."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rxloop import op
from rxloop.protocol.events import Event, LLMCallEvent, UsageEvent
from rxloop.providers import PRESETS
from rxloop.providers.catalog import count_long_kept
from rxloop.providers.codecs import CodecFactory
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.providers.failures import Endpoint
from rxloop.stream.sources import emit

MILLION = 1_000_000
CLAUDE = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Hi."}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 10_000,
        "cache_read_input_tokens": 40_000,
        "cache_creation_input_tokens": 50_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 20_000, "ephemeral_1h_input_tokens": 30_000},
        "output_tokens": 1_000,
    },
}
GPT = {
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": {
        "input_tokens": 100_000,
        "input_tokens_details": {
            "cached_tokens": 40_000,
            "cache_write_tokens": 50_000,
            "cache_write_tokens_details": {"ttl_12h_tokens": 30_000, "ttl_30m_tokens": 20_000},
        },
        "output_tokens": 1_000,
    },
}


def parse_usage(wire: CodecFactory, answer: dict[str, Any]) -> UsageEvent:
    events: list[Event] = []
    speaking = wire("m", PRESETS["openai"], stream=False)
    reading = speaking.make_reader(MessageDraft(events.append, "1", Endpoint("m", "http://host/v1")))
    reading.read_body(orjson.dumps(answer))
    reading.complete()
    [usage] = [each for each in events if isinstance(each, UsageEvent)]
    return usage


def compute_cost(model: str, usage: UsageEvent) -> float:
    call = LLMCallEvent(
        step="1", iteration=1, model=model, message_count=1, tool_count=0, estimated_input_tokens=1, task_id="t"
    )
    sums: list[float] = []
    emit(call, usage.model_copy(update={"task_id": "t"})).pipe(op.cost()).subscribe(sums.append)
    return sums[-1] * MILLION


@pytest.mark.parametrize(("wire", "answer"), [(AnthropicCodec, CLAUDE), (ResponsesCodec, GPT)])
def test_input_tokens_are_split_without_double_counting(wire: CodecFactory, answer: dict[str, Any]) -> None:
    usage = parse_usage(wire, answer)
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (100_000, 40_000, 50_000)
    assert count_long_kept(usage) == 30_000


def test_cost_matches_the_price_lists() -> None:
    claude = 10_000 * 5 + 40_000 * 0.5 + 20_000 * 6.25 + 30_000 * 10 + 1_000 * 25
    assert compute_cost("anthropic:claude-opus-4-6", parse_usage(AnthropicCodec, CLAUDE)) == pytest.approx(claude)
    gpt = 10_000 * 2 + 40_000 * 0.1 + 20_000 * 2.5 + 30_000 * 5 + 1_000 * 10
    assert compute_cost("openai_responses:gpt-6.2-sol", parse_usage(ResponsesCodec, GPT)) == pytest.approx(gpt)
