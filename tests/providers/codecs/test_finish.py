"""Finish reasons of vendors and gateways, normalised.  # P9"""

from __future__ import annotations

import pytest

from rxloop.errors import ProviderError, ProviderProtocolError
from rxloop.protocol.events import ContentCompleteEvent, LLMNoticeEvent
from rxloop.providers.codecs.answer_end import FAILED, MALFORMED_CALL, normalise_finish_reason
from support.http_server import delta
from support.vendors.chat_chunks import read_chunks


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        *[(raw, "stop") for raw in ("stop", "STOP", "eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE")],
        *[(raw, "stop") for raw in ("completed", "done", "FinishReason.STOP", "FINISH_REASON_STOP")],
        *[(raw, "tool_calls") for raw in ("tool_calls", "tool_use", "function_call", "TOOL_CALL", "tool-calls")],
        *[(raw, "length") for raw in ("length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length")],
        *[(raw, "length") for raw in ("model_context_window_exceeded", "context_length_exceeded", "ERROR_LIMIT")],
        *[(raw, "content_filter") for raw in ("content_filter", "refusal", "SAFETY", "sensitive", "ERROR_TOXIC")],
        *[(raw, "content_filter") for raw in ("content_filter: violence", "PROHIBITED_CONTENT", "RECITATION", "SPII")],
        *[(raw, "content_filter") for raw in ("guardrail_intervened", "guardrails", "IMAGE_SAFETY", "MODEL_ARMOR")],
        *[(raw, "pause") for raw in ("pause_turn", "compaction")],
        *[(raw, MALFORMED_CALL) for raw in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "malformed_tool_use")],
        ("function_call_filter: MALFORMED_FUNCTION_CALL", MALFORMED_CALL),
        ("function_call_filter: UNEXPECTED_TOOL_CALL", MALFORMED_CALL),
        *[(raw, FAILED) for raw in ("error", "network_error", "insufficient_system_resource", "abort", "cancelled")],
        *[(raw, FAILED) for raw in ("ERROR", "error_internal", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE")],
        *[(raw, "unknown") for raw in ("OTHER", "NO_IMAGE", "stop_v2", "tool_calls_v2", "?", "load")],
    ],
)
def test_finish_reason_is_normalised(raw: str, reason: str) -> None:  # P9
    assert normalise_finish_reason(raw) == reason


@pytest.mark.parametrize("raw", ["weird", "OTHER", "stop: not really"])
def test_unknown_finish_reason_without_content_is_an_error_that_names_it(raw: str) -> None:  # P9
    with pytest.raises(ProviderProtocolError, match=raw):
        read_chunks(delta(raw))


def test_unknown_finish_reason_with_content_is_unknown_and_noticed() -> None:  # P9
    events = read_chunks(delta(content="Hi"), delta("weird"))
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert (done.content, done.finish_reason, done.raw_finish_reason) == ("Hi", "unknown", "weird")
    assert ["weird" in event.message for event in events if isinstance(event, LLMNoticeEvent)] == [True]


@pytest.mark.parametrize("raw", ["error", "network_error", "abort", "insufficient_system_resource"])
def test_reason_of_failure_is_an_error_although_there_is_content(raw: str) -> None:  # P9
    with pytest.raises(ProviderError, match=raw):
        read_chunks(delta(content="Hi"), delta(raw))


def test_normal_finish_reason_does_not_replace_an_earlier_truncation() -> None:  # P9
    done = read_chunks(delta(content="Hi"), delta("length"), delta("stop"))[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert done.finish_reason == "length"


@pytest.mark.parametrize(
    ("native", "reason"), [("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("odd", "stop")]
)
def test_native_finish_reason_of_a_gateway_counts_if_it_is_worse(native: str, reason: str) -> None:  # P9
    last = delta("stop")
    last["choices"][0]["native_finish_reason"] = native
    done = read_chunks(delta(content="Hi"), last)[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert done.finish_reason == reason
