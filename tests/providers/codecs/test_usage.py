"""Token counts that vendors and gateways report in different places and with different meanings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rxloop.errors import ProviderError
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers import Retry, google_gemini, openai_chat, openai_responses
from rxloop.providers.catalog import Price, count_long_kept
from rxloop.providers.codecs import ResponseReader
from rxloop.providers.codecs.anthropic.response import MessagesReader
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.response import GeminiReader
from rxloop.providers.codecs.responses.response import ResponsesReader
from support.http_server import REQUEST, Reply, collect, delta, sse, start_server
from support.vendors.chat_chunks import WHERE, read_chunks, read_whole

Counts = tuple[int, int, int, int, int]
"""Input, output, cached, written into the cache, reasoning."""


def read_usage(events: list[Event]) -> Counts | None:
    usage = [event for event in events if isinstance(event, UsageEvent)]
    assert len(usage) <= 1
    if not usage:
        return None
    each = usage[0]
    return each.input_tokens, each.output_tokens, each.cached_tokens, each.cache_write_tokens, each.reasoning_tokens


def chat(*reports: Any) -> Counts | None:
    """Send each report in a separate chunk."""
    chunks = [{"choices": [], "usage": report} for report in reports]
    return read_usage(read_chunks(delta(content="x"), delta("stop"), *chunks))


def from_reader(make: Callable[[MessageDraft], ResponseReader], *payloads: Any, streamed: bool = True) -> Counts | None:
    events: list[Event] = []
    reader = make(MessageDraft(events.append, "1", WHERE))
    if streamed:
        reader.feed([orjson.dumps(payload) for payload in payloads])
    else:
        reader.read_body(orjson.dumps(payloads[0]))
    reader.complete()
    return read_usage(events)


def messages(start: Any, *ends: Any) -> Counts | None:
    payloads = [{"type": "message_start", "message": {"usage": start}}]
    payloads += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end} for end in ends]
    return from_reader(MessagesReader, *payloads, {"type": "message_stop"})


def gemini(*reports: Any) -> Counts | None:
    candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}
    chunks = [{"candidates": [candidate], "usageMetadata": report} for report in reports]
    return from_reader(lambda draft: GeminiReader(draft, "google"), *chunks)


def responses(report: Any, streamed: bool = True) -> Counts | None:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    response = {"id": "r", "status": "completed", "output": [message], "usage": report}
    payload = {"type": "response.completed", "response": response} if streamed else response
    return from_reader(lambda draft: ResponsesReader(draft, "openai", lambda: None), payload, streamed=streamed)


def details(cached: Any = 0, reasoning: Any = 0) -> dict[str, Any]:
    return {
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def make_openai_usage(prompt: Any, completion: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


# P7
@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(make_openai_usage(12, 1, 399, **details(0, 386)), (12, 387, 0, 0, 386), id="xAI"),
        pytest.param(
            make_openai_usage(10120, 1499, 14428, **details(128, 2809)), (10120, 4308, 128, 0, 2809), id="xAI, cached"
        ),
        pytest.param(
            make_openai_usage(526, 72, 670, **details(0, 72)), (526, 144, 0, 0, 72), id="reasoning as long as the text"
        ),
        pytest.param(
            make_openai_usage(526, 90, 688, **details(0, 72)),
            (526, 162, 0, 0, 72),
            id="reasoning shorter than the text",
        ),
        pytest.param(make_openai_usage(12, 1, None, **details(0, 386)), (12, 387, 0, 0, 386), id="no total"),
        pytest.param(make_openai_usage(28, 5, 33, **details(0, 48)), (28, 53, 0, 0, 48), id="wrong total of a gateway"),
        pytest.param(make_openai_usage(12, 387, 399, **details(0, 386)), (12, 387, 0, 0, 386), id="OpenAI: included"),
        pytest.param(
            make_openai_usage(12, 387, None, **details(0, 386)), (12, 387, 0, 0, 386), id="included, no total"
        ),
        pytest.param(make_openai_usage(12, 5, 117), (12, 105, 0, 0, 0), id="only the total has the reasoning"),
        pytest.param(
            make_openai_usage(12, 5, 117, reasoning_tokens=100), (12, 105, 0, 0, 100), id="reasoning at the top"
        ),
        pytest.param(make_openai_usage(12, None, 17), (12, 5, 0, 0, 0), id="no completion"),
        pytest.param(make_openai_usage(None, 5, 17), (12, 5, 0, 0, 0), id="no prompt"),
        pytest.param({"total_tokens": 17}, (17, 0, 0, 0, 0), id="only a total"),
        pytest.param(make_openai_usage(12, 5, 3), (12, 5, 0, 0, 0), id="total too small"),
        pytest.param(make_openai_usage(12, 5, -3), (12, 5, 0, 0, 0), id="total negative"),
        pytest.param(make_openai_usage("12", "5", "17"), (12, 5, 0, 0, 0), id="strings"),
        pytest.param(make_openai_usage(12.0, 5.0, 17.0, **details(3.0, 2.0)), (12, 5, 3, 0, 2), id="floats"),
        pytest.param(make_openai_usage("12.0", "many", "nan"), (12, 0, 0, 0, 0), id="strings that are no numbers"),
        pytest.param(make_openai_usage(-12, -5), (0, 0, 0, 0, 0), id="negative"),
        pytest.param(make_openai_usage(12, 5, None, prompt_tokens_details=None), (12, 5, 0, 0, 0), id="details null"),
        pytest.param(
            make_openai_usage(12, 5, None, cached_tokens=8), (12, 5, 8, 0, 0), id="Moonshot: cached at the top"
        ),
        pytest.param(make_openai_usage(12, 5, None, prompt_cache_hit_tokens=8), (12, 5, 8, 0, 0), id="DeepSeek"),
        pytest.param(
            make_openai_usage(12, 5, None, **details(0), cached_tokens=8), (12, 5, 8, 0, 0), id="zero next to a count"
        ),
        pytest.param({"input_tokens": 12, "output_tokens": 5}, (12, 5, 0, 0, 0), id="names of Responses"),
        pytest.param(
            make_openai_usage(2, 5, 1007, cache_read_input_tokens=1000), (1002, 5, 1000, 0, 0), id="cache apart"
        ),
        pytest.param(make_openai_usage(12, 5, 17, cost=0.1, queue_time=0.2), (12, 5, 0, 0, 0), id="other fields"),
        pytest.param({"cost": 0.1}, None, id="no count at all"),
        pytest.param(None, None, id="null"),
        pytest.param({}, None, id="empty"),
        pytest.param([1], None, id="a list"),
        pytest.param("12", None, id="a string"),
    ],
)
def test_chat_usage_counts_all_input_and_all_output(report: Any, expected: Counts | None) -> None:
    assert chat(report) == expected
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": report}
    assert read_usage(read_whole(body)) == expected


# P33
@pytest.mark.parametrize(
    "more",
    [
        {"cache_creation_input_tokens": 900, "cache_read_input_tokens": 50},
        {"prompt_tokens_details": {"cache_creation_tokens": 900, "cached_tokens": 50}},
        {"prompt_tokens_details": {"cached_creation_tokens": 900, "cache_read_tokens": 50}},
        {"prompt_tokens_details": {"cache_write_tokens": 900, "cached_tokens": 50}},
        {
            "cache_creation_input_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 50, "cache_creation_tokens": 900},
        },
        {
            "prompt_tokens_details": {
                "cached_tokens": 50,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 900, "ephemeral_1h_input_tokens": 0},
            }
        },
    ],
)
def test_cache_writes_of_gateways_are_counted_and_charged(more: dict[str, Any]) -> None:
    report = make_openai_usage(1000, 5, 1005, **more)
    assert chat(report) == (1000, 5, 50, 900, 0)
    (usage,) = [
        event for event in read_chunks(delta("stop"), {"choices": [], "usage": report}) if isinstance(event, UsageEvent)
    ]
    assert Price(1, 0, cached=0, cache_write=100).of(usage.usage) == pytest.approx((50 + 900 * 100) / 1e6)


# P33
def test_cache_writes_kept_for_an_hour_have_a_separate_price() -> None:
    kept = {"cache_creation_token_details": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 800}}
    report = make_openai_usage(1000, 5, None, cache_creation_input_tokens=900, prompt_tokens_details=kept)
    (usage,) = [
        event for event in read_chunks(delta("stop"), {"choices": [], "usage": report}) if isinstance(event, UsageEvent)
    ]
    assert (usage.cache_write_tokens, count_long_kept(usage)) == (900, 800)


# P7
@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([make_openai_usage(12, 1, 13), make_openai_usage(12, 5, 17)], (12, 5, 0, 0, 0)),
        (
            [make_openai_usage(12, 5, 17, **details(8, 3)), make_openai_usage(0, 0, 0, **details(0, 0))],
            (12, 5, 8, 0, 3),
        ),
        ([make_openai_usage(12, 5, 17), None, {}], (12, 5, 0, 0, 0)),
        ([make_openai_usage(12, 0), make_openai_usage(0, 5)], (12, 5, 0, 0, 0)),
        ([make_openai_usage(12, 0, 12), {"completion_tokens": 5}], (12, 5, 0, 0, 0)),
        (
            [make_openai_usage(12, 1, 999, **details(0, 386)), make_openai_usage(12, 2, 400, **details(0, 386))],
            (12, 388, 0, 0, 386),
        ),
        ([make_openai_usage(100, 50, 150), make_openai_usage(12, 5)], (12, 5, 0, 0, 0)),
    ],
)
def test_last_report_replaces_earlier_ones_except_with_zeros(reports: list[Any], expected: Counts) -> None:
    assert chat(*reports) == expected


# P7
@pytest.mark.parametrize(
    "inside",
    [
        delta(),
        delta(content=""),
        delta("stop"),
        delta("stop", content=""),
        delta("stop", content="last words"),
        delta(content="words"),
        delta(reasoning_content="thoughts"),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "see", "arguments": "{}"}}]),
    ],
)
def test_usage_in_a_choice_is_read(inside: dict[str, Any]) -> None:
    inside["choices"][0]["usage"] = make_openai_usage(12, 5, 17, cached_tokens=8)
    assert read_usage(read_chunks(delta(content="x"), inside, delta("stop"))) == (12, 5, 8, 0, 0)
    choice = {"message": {"content": "x"}, "finish_reason": "stop", "usage": make_openai_usage(12, 5, 17)}
    assert read_usage(read_whole({"choices": [choice]})) == (12, 5, 0, 0, 0)
    both = {"choices": [choice], "usage": make_openai_usage(0, 0, 0)}
    assert read_usage(read_whole(both)) == (12, 5, 0, 0, 0)


# P7
@pytest.mark.parametrize(
    ("start", "ends", "expected"),
    [
        pytest.param(
            {"input_tokens": 10, "output_tokens": 1}, [{"output_tokens": 5}], (10, 5, 0, 0, 0), id="Anthropic"
        ),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 1},
            [{"input_tokens": 0, "output_tokens": 5}],
            (10, 5, 0, 0, 0),
            id="zero input at the end",
        ),
        pytest.param(
            {"input_tokens": 0, "output_tokens": 0},
            [{"input_tokens": 10, "output_tokens": 5}],
            (10, 5, 0, 0, 0),
            id="zero input at the start",
        ),
        pytest.param(
            {"input_tokens": 10, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3},
            [{"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 5}],
            (20, 5, 7, 3, 0),
            id="zero cache at the end",
        ),
        pytest.param(
            {"input_tokens": 10, "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
            [{"output_tokens": 5}],
            (17, 5, 0, 7, 0),
            id="only the parts of the cache writes",
        ),
        pytest.param({"input_tokens": "10"}, [{"output_tokens": "5"}], (10, 5, 0, 0, 0), id="strings"),
        pytest.param(
            {"input_tokens": 10},
            [{"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}}],
            (10, 5, 0, 0, 3),
            id="thinking included",
        ),
        pytest.param(
            {"input_tokens": 10}, [{"output_tokens": 5}, {"output_tokens": 9}], (10, 9, 0, 0, 0), id="several"
        ),
        pytest.param(None, [{"input_tokens": 10, "output_tokens": 5}], (10, 5, 0, 0, 0), id="only at the end"),
        pytest.param(None, [None], None, id="null"),
    ],
)
def test_zeros_of_a_gateway_do_not_replace_counts(start: Any, ends: list[Any], expected: Any) -> None:
    assert messages(start, *ends) == expected
    report = {**(start or {})}
    for end in ends:
        report.update({name: value for name, value in (end or {}).items() if value})
    content = [{"type": "text", "text": "x"}]
    body = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": report or None}
    assert from_reader(MessagesReader, body, streamed=False) == expected


# P7
@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param(
            [{"promptTokenCount": 8, "candidatesTokenCount": 18, "thoughtsTokenCount": 433, "totalTokenCount": 459}],
            (8, 451, 0, 0, 433),
            id="thoughts apart",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "candidatesTokenCount": 18, "thoughtsTokenCount": 433}],
            (8, 451, 0, 0, 433),
            id="no total",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "candidatesTokenCount": 451, "thoughtsTokenCount": 433, "totalTokenCount": 459}],
            (8, 451, 0, 0, 433),
            id="thoughts included",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "toolUsePromptTokenCount": 20, "candidatesTokenCount": 5, "totalTokenCount": 33}],
            (28, 5, 0, 0, 0),
            id="tool use",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "thoughtsTokenCount": 2, "totalTokenCount": 10}],
            (8, 2, 0, 0, 2),
            id="only thoughts",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "totalTokenCount": 30}], (8, 22, 0, 0, 0), id="only the total has the output"
        ),
        pytest.param(
            [
                {"promptTokenCount": 8, "candidatesTokenCount": 5, "totalTokenCount": 13},
                {"promptTokenCount": 8, "totalTokenCount": 13},
            ],
            (8, 5, 0, 0, 0),
            id="no output in the last chunk",
        ),
        pytest.param(
            [
                {"promptTokenCount": 8, "candidatesTokenCount": 5, "cachedContentTokenCount": 3},
                {"promptTokenCount": 0, "candidatesTokenCount": 0, "cachedContentTokenCount": 0},
            ],
            (8, 5, 3, 0, 0),
            id="zeros at the end",
        ),
        pytest.param(
            [{"promptTokenCount": 8, "candidatesTokenCount": 5}, {"promptTokenCount": 8, "candidatesTokenCount": 9}],
            (8, 9, 0, 0, 0),
            id="several",
        ),
        pytest.param([{"trafficType": "ON_DEMAND"}], None, id="no count"),
        pytest.param([None], None, id="null"),
    ],
)
def test_gemini_usage_counts_thoughts_once(reports: list[Any], expected: Counts | None) -> None:
    assert gemini(*reports) == expected


# P7
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(
            {
                "input_tokens": 12,
                "output_tokens": 5,
                "total_tokens": 17,
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            (12, 5, 0, 0, 3),
            id="included",
        ),
        pytest.param(
            {
                "input_tokens": 12,
                "output_tokens": 5,
                "total_tokens": 117,
                "output_tokens_details": {"reasoning_tokens": 100},
            },
            (12, 105, 0, 0, 100),
            id="apart",
        ),
        pytest.param({"prompt_tokens": 12, "completion_tokens": 5}, (12, 5, 0, 0, 0), id="names of chat"),
        pytest.param({"input_tokens": "12", "output_tokens": 5.0}, (12, 5, 0, 0, 0), id="strings"),
        pytest.param(
            {
                "input_tokens": 12,
                "output_tokens": 5,
                "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
            },
            (12, 5, 8, 2, 0),
            id="cache",
        ),
        pytest.param(None, None, id="null"),
    ],
)
def test_responses_usage_counts_all_input_and_all_output(report: Any, expected: Any, streamed: bool) -> None:
    assert responses(report, streamed) == expected


XAI = {**make_openai_usage(32, 9, 135), "completion_tokens_details": {"reasoning_tokens": 94}}
FAILED: dict[str, tuple[str, list[Any], int]] = {
    "an error after the usage": ("openai_chat", [{"choices": [], "usage": XAI}, {"error": {"message": "busy"}}], 103),
    "an error with the usage": ("openai_chat", [{"choices": [], "usage": XAI, "error": {"message": "busy"}}], 103),
    "an error in a choice": (
        "openai_chat",
        [{"choices": [{"index": 0, "delta": {}, "error": {"message": "busy"}}], "usage": XAI}],
        103,
    ),
    "a stream without an end": ("openai_chat", [{**delta(content="x"), "usage": XAI}], 103),
    "a failed response": (
        "openai_responses",
        [
            {
                "type": "response.failed",
                "response": {
                    "status": "failed",
                    "error": {"code": "server_error", "message": "busy"},
                    "usage": {"input_tokens": 32, "output_tokens": 103, "total_tokens": 135},
                },
            }
        ],
        103,
    ),
    "a malformed response": (
        "google_gemini",
        [
            {
                "candidates": [{"finishReason": "MALFORMED_RESPONSE"}],
                "usageMetadata": {"promptTokenCount": 32, "thoughtsTokenCount": 7, "totalTokenCount": 39},
            }
        ],
        7,
    ),
}


# P7
@pytest.mark.parametrize(("wire", "chunks", "output"), FAILED.values(), ids=FAILED)
async def test_tokens_of_a_failed_answer_are_counted_once(wire: str, chunks: list[Any], output: int) -> None:
    make = {"openai_chat": openai_chat, "openai_responses": openai_responses, "google_gemini": google_gemini}[wire]
    async with start_server() as server:
        server.answer(Reply(sse(*chunks, done=False)))
        model = make("m", base_url=server.base_url, api_key="k", retry=Retry(attempts=2, first=0))
        answer = await collect(model.call(REQUEST))
        await model.aclose()
    assert isinstance(answer.error, ProviderError)
    usage = [event for event in answer.events if isinstance(event, UsageEvent)]
    assert [(event.input_tokens, event.output_tokens) for event in usage] == [(32, output)] * len(server.requests)
