"""Responses read from any combination of events."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest

from rxloop.errors import ContentFiltered, ProviderError, ProviderProtocolError, RateLimited, ServerError
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMNoticeEvent,
    ServerToolEvent,
    ThoughtDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Citation, ImagePart, Message
from rxloop.providers.bounds import Bounds, OutOfBounds
from support.vendors.responses import (
    call,
    completed_event,
    encode,
    item_added,
    item_delta,
    item_done,
    last_message,
    make_codec,
    read_events,
    reasoning,
    response,
    text,
)


def final_message(events: list[Event]) -> ContentCompleteEvent:
    assert isinstance(events[-1], ContentCompleteEvent)
    return events[-1]


def notice_messages(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, LLMNoticeEvent)]


HELLO = text("Hello")
LOOK = call("look", '{"a":1}')
HM = reasoning("First.", "Second.")
TEXT = [item_added(HELLO), item_delta("output_text", "Hel", HELLO), item_delta("output_text", "lo", HELLO)]
TEXT_DONE = {
    "type": "response.output_text.done",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "text": "Hello",
}


@pytest.mark.parametrize(
    "events",
    [
        [*TEXT, TEXT_DONE, item_done(HELLO), completed_event(HELLO)],
        [*TEXT, completed_event()],
        [item_delta("output_text", "Hello", HELLO), completed_event()],
        [item_added(HELLO), TEXT_DONE, completed_event()],
        [item_added(HELLO), item_done(HELLO), completed_event()],
        [TEXT_DONE, completed_event(HELLO)],
        [item_done(HELLO), completed_event()],
        [completed_event(HELLO)],
        [*TEXT[:2], item_done(HELLO), completed_event(HELLO)],
        [*TEXT, item_done(HELLO), completed_event({**HELLO, "id": "another"})],
        [*TEXT, item_done({**HELLO, "id": "another"}), completed_event({**HELLO, "id": "a third"})],
        [*TEXT, item_done(HELLO), completed_event({**HELLO, "content": []})],
        [
            item_added({**HELLO, "id": None}),
            {**TEXT[1], "item_id": None},
            {**TEXT[2], "item_id": None},
            completed_event(HELLO),
        ],
        [{"type": "response.output_text.delta", "delta": "Hello"}, completed_event()],
        [{"type": "response.output_text.delta", "delta": each} for each in "Hello"] + [completed_event(HELLO)],
    ],
)
def test_text_is_read_once_from_any_combination_of_events(events: list[dict[str, Any]]) -> None:
    found = read_events(events)
    assert final_message(found).content == "Hello"
    assert "".join(event.delta for event in found if isinstance(event, ContentDeltaEvent)) == "Hello"
    assert notice_messages(found) == []


@pytest.mark.parametrize(
    "events",
    [
        [
            item_added(LOOK),
            item_delta("function_call_arguments", '{"a"', LOOK),
            item_delta("function_call_arguments", ":1}", LOOK),
        ],
        [item_added(LOOK), {**item_done(LOOK)}],
        [item_added({**LOOK, "name": ""}), item_delta("function_call_arguments", '{"a":1}', LOOK), item_done(LOOK)],
        [
            item_added(LOOK),
            {"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": '{"a":1}'},
        ],
        [],
    ],
)
@pytest.mark.parametrize("end", [completed_event(LOOK), completed_event({**LOOK, "id": "another"})])
def test_call_is_read_once_from_any_combination_of_events(events: list[dict[str, Any]], end: dict[str, Any]) -> None:
    found = final_message(read_events([*events, end]))
    assert [(each.id, each.name, each.arguments) for each in found.tool_calls] == [("call_1", "look", {"a": 1})]
    assert (found.finish_reason, found.raw_finish_reason) == ("tool_calls", "completed")


def test_call_with_contradictory_fragments_is_an_error() -> None:
    events = [
        item_added(LOOK),
        item_delta("function_call_arguments", '{"a":', LOOK),
        item_delta("function_call_arguments", "2}", LOOK),
    ]
    with pytest.raises(ProviderProtocolError, match="fragments"):
        read_events([*events, completed_event(LOOK)])
    spaced = {**LOOK, "arguments": '{"a": 2}'}
    assert final_message(read_events([*events, completed_event(spaced)])).tool_calls[0].arguments == {"a": 2}


def test_interleaved_items_are_sent_back_in_order() -> None:
    other = text("Bye", 2)
    events = [
        item_added(HM),
        item_added(HELLO, 1),
        item_delta("reasoning_summary_text", "Fir", HM),
        item_delta("output_text", "Hel", HELLO, 1),
        item_added(LOOK, 2),
        item_delta("reasoning_summary_text", "st.", HM),
        item_delta("function_call_arguments", '{"a":', LOOK, 2),
        item_added(other, 3),
        item_delta("output_text", "By", other, 3),
        item_delta("output_text", "lo", HELLO, 1),
        item_delta("output_text", "e", other, 3),
        item_delta("function_call_arguments", "1}", LOOK, 2),
        item_delta("reasoning_summary_text", "Second.", HM, part=1),
        completed_event(HM, HELLO, LOOK, other),
    ]
    found = read_events(events)
    assert final_message(found).content == "HelByloe"  # as it came
    assert (
        "".join(event.delta for event in found if isinstance(event, ThoughtDeltaEvent))
        == final_message(found).reasoning
    )
    message = last_message(found)
    sent = encode([message, Message.tool("call_1", "x")])["input"]
    assert sent[:4] == [HM, HELLO, LOOK, other]


def test_unstreamed_answer_is_read_like_a_streamed_one() -> None:
    streamed = final_message(
        read_events([item_added(HM), item_done(HM), *TEXT, item_done(HELLO), completed_event(HM, HELLO)])
    )
    whole = final_message(read_events(response(HM, HELLO)))
    assert (streamed.content, streamed.reasoning) == (whole.content, whole.reasoning) == ("Hello", "First.Second.")
    assert streamed.provider_state == whole.provider_state


def test_reasoning_summary_is_published_and_both_forms_are_sent_back() -> None:
    both = {**HM, "content": [{"type": "reasoning_text", "text": "All of it."}]}
    found = read_events(response(both, HELLO))
    assert final_message(found).reasoning == "First.Second."
    assert encode([last_message(found)])["input"] == [both, HELLO]


def test_encrypted_content_is_read_from_the_done_event() -> None:
    found = read_events(
        [
            item_added({**HM, "encrypted_content": "part"}),
            item_done(HM),
            item_done(HELLO, 1),
            completed_event({**HM, "encrypted_content": "x"}, HELLO),
        ]
    )
    assert encode([last_message(found)])["input"][0] == HM


def test_refusal_is_read_as_text_and_sent_back_as_refusal() -> None:
    item = {**HELLO, "content": [{"type": "refusal", "refusal": "I will not."}]}
    found = read_events(
        [item_added(item), item_delta("refusal", "I will", item), item_done(item), completed_event(item)]
    )
    assert final_message(found).content == "I will not."
    assert encode([last_message(found)])["input"] == [item]


def test_citations_have_positions_in_the_whole_text() -> None:
    annotation = {"type": "url_citation", "start_index": 1, "end_index": 3, "url": "https://e.org", "title": "E"}
    file = {"type": "file_citation", "file_id": "f", "filename": "a.txt", "index": 2}
    item = text("world", 2, content=[{"type": "output_text", "text": "world", "annotations": [annotation, file]}])
    event = {"type": "response.output_text.annotation.added", "item_id": "msg_2", "content_index": 0}
    for events in (
        [item_done(HELLO), item_done(item, 1), completed_event(HELLO, item)],
        [
            item_done(HELLO),
            item_delta("output_text", "world", item, 1),
            {**event, "annotation": annotation},
            {**event, "annotation": file},
            completed_event(),
        ],
    ):
        found = read_events(events)
        assert final_message(found).citations == [
            Citation(url="https://e.org", title="E", start=6, end=8),
            Citation(title="a.txt"),
        ]
        assert encode([last_message(found)])["input"][1]["content"] == item["content"]


def test_generated_image_is_a_file_and_sent_back() -> None:
    item = {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "completed",
        "output_format": "webp",
        "result": b64encode(b"cat").decode(),
    }
    for answer in (
        response(item, HELLO),
        [item_added({**item, "result": None}), item_done(item), item_done(HELLO, 1), completed_event(item, HELLO)],
    ):
        found = read_events(answer)
        assert final_message(found).files == [ImagePart(data=b"cat", media_type="image/webp")]
        assert encode([last_message(found)])["input"] == [item, HELLO]
    assert orjson.dumps(final_message(found).provider_state).count(item["result"].encode()) == 0


def test_server_tool_calls_are_published_and_sent_back() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    mcp = {
        "type": "mcp_call",
        "id": "mcp_1",
        "name": "ask",
        "server_label": "wiki",
        "arguments": "{}",
        "output": None,
        "error": "no",
    }
    quiet = {"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0}
    found = read_events(
        [
            item_added(search),
            quiet,
            item_done(search),
            item_done(mcp, 1),
            item_done(HELLO, 2),
            completed_event(search, mcp, HELLO),
        ]
    )
    tool_events = [(event.name, event.phase, event.success) for event in found if isinstance(event, ServerToolEvent)]
    assert tool_events == [
        ("web_search", "start", True),
        ("web_search", "complete", True),
        ("ask", "start", True),
        ("ask", "complete", False),
    ]
    assert encode([last_message(found)])["input"] == [search, mcp, HELLO]
    assert notice_messages(found) == []


def test_custom_tool_call_is_read_and_answered_in_its_format() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": 'print("½")\n'}
    events = [
        item_added({**item, "input": ""}),
        item_delta("custom_tool_call_input", "print(", item),
        item_delta("custom_tool_call_input", '"½")\n', item),
        item_done(item),
        completed_event(item),
    ]
    for answer in (events, response(item)):
        message = last_message(read_events(answer))
        assert [(each.name, each.arguments) for each in message.tool_calls] == [("run", {"input": item["input"]})]
        sent = encode([message, Message.tool("call_1", "½")])["input"]
        assert sent == [item, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "½"}]


def test_unknown_events_are_reported_once_and_unknown_items_sent_back() -> None:
    item = {"type": "oracle_call", "id": "o_1", "wisdom": [1, {"a": None}]}
    events = [
        {"type": "response.oracle.delta"},
        {"type": "response.oracle.delta"},
        {"type": 7},
        {},
        {"type": "keepalive"},
    ]
    found = read_events([*events, item_done(item), item_done(HELLO, 1), completed_event(item, HELLO)])
    assert len(notice_messages(found)) == 3
    assert final_message(found).content == "Hello"
    assert encode([last_message(found)])["input"] == [item, HELLO]


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            ("length", "max_output_tokens"),
        ),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            ("content_filter", "content_filter"),
        ),
        ({"status": "incomplete"}, ("length", "incomplete")),
        ({}, ("stop", "completed")),
    ],
)
def test_finish_reason_is_mapped(fields: dict[str, Any], reasons: tuple[str, str]) -> None:
    for answer in (
        response(HELLO, **fields),
        [*TEXT, {"type": "response.incomplete", "response": orjson.loads(response(HELLO, **fields))}],
    ):
        found = final_message(read_events(answer))
        assert (found.finish_reason, found.raw_finish_reason) == reasons


def test_usage_contains_cached_and_reasoning_tokens() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    counted = [event.usage for event in read_events(response(HELLO, usage=usage)) if isinstance(event, UsageEvent)]
    assert [
        (each.input_tokens, each.output_tokens, each.cached_tokens, each.cache_write_tokens, each.reasoning_tokens)
        for each in counted
    ] == [(10, 5, 4, 3, 2)]


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}, RateLimited, "Slow down"),
        ({"type": "error", "error": {"code": "server_error", "message": "Oh."}}, ServerError, "Oh"),
        ({"error": {"message": "Oh."}}, ProviderError, "Oh"),
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "server_error", "message": "Broke."}},
            },
            ServerError,
            "Broke",
        ),
        ({"type": "response.failed"}, ServerError, "failed"),
        ({"type": "response.cancelled", "response": {"status": "cancelled"}}, ProviderError, "cancelled"),
        ({"type": "error", "code": "content_filter", "message": "No."}, ContentFiltered, "No"),
    ],
)
def test_error_during_a_stream_is_raised_with_its_type(
    event: dict[str, Any], kind: type[ProviderError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        read_events([*TEXT, event])


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_queued_answer_is_an_error_with_a_remedy(status: str) -> None:
    with pytest.raises(ProviderProtocolError, match="stream=True"):
        read_events(response(status=status))


def test_truncated_stream_is_an_error() -> None:
    with pytest.raises(ProviderError, match="cut short"):
        read_events(TEXT)


HOSTILE: list[Any] = [None, 7, -1, "", "x", [], [7], {}, {"type": "message"}, {"type": ["x"]}, {"a": [1]}, True, 1e300]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "name", ["type", "item", "item_id", "output_index", "content_index", "delta", "response", "text", "annotation"]
)
def test_reader_handles_any_value_in_an_event(name: str, value: Any) -> None:
    every = [
        *TEXT,
        TEXT_DONE,
        item_done(HELLO),
        item_added(HM, 1),
        item_delta("reasoning_summary_text", "x", HM, 1),
        item_done(HM, 1),
    ]
    every += [
        item_added(LOOK, 2),
        item_delta("function_call_arguments", "{}", LOOK, 2),
        {"type": "response.output_text.annotation.added"},
    ]
    for event in every:
        try:
            found = read_events([{**event, name: value}, completed_event(HELLO)])
        except ProviderError:
            continue
        encode([last_message(found), *(Message.tool(each.id, "x") for each in final_message(found).tool_calls)])


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "item",
    [
        HELLO,
        HM,
        LOOK,
        {"type": "image_generation_call", "id": "i", "result": "eA=="},
        {"type": "custom_tool_call", "name": "n", "input": ""},
    ],
)
def test_reader_handles_any_value_in_an_item(item: dict[str, Any], value: Any) -> None:
    for name in item:
        try:
            found = read_events(response({**item, name: value}))
        except ProviderError:
            continue
        encode([last_message(found)])
        encode([last_message(found)], make_codec("gpt-4o"))


def test_endless_items_reach_a_limit() -> None:
    with pytest.raises(OutOfBounds):
        read_events(
            [item_added({"type": "message", "id": str(number)}) for number in range(20_000)],
            bounds=Bounds(text=100_000),
        )
    mixed = [item_delta("output_text", "x", text("", number), number) for number in (1, 2)]
    with pytest.raises(OutOfBounds):
        read_events(mixed * 1000, bounds=Bounds(text=100_000))
    secret = [item_done({**HM, "id": str(number), "encrypted_content": "x" * 1000}, number) for number in range(500)]
    with pytest.raises(OutOfBounds):
        read_events([*secret, completed_event()], bounds=Bounds(text=100_000))
