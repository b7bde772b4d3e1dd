"""Histories encoded for OpenAI Responses."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from support.vendors.responses import (
    OPENAI,
    call,
    encode,
    last_message,
    make_codec,
    read_events,
    reasoning,
    response,
    text,
)

HM, HELLO, LOOK = reasoning("Hm."), text("Hello"), call("look", "{}")
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
PLAIN_LOOK = {name: LOOK[name] for name in ("type", "call_id", "name", "arguments")}
PLAIN = [{"role": "assistant", "content": "Hello"}, PLAIN_LOOK]
RESULT = Message.tool("call_1", "a cat")
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "a cat"}


def answer(*items: dict[str, Any], **fields: Any) -> Message:
    return last_message(read_events(response(*items, **fields)))


@pytest.mark.parametrize(
    ("message", "model", "why"),
    [
        (answer(HM, HELLO, SEARCH, LOOK), "gpt-4o", "does not accept"),
        (answer({**HM, "encrypted_content": None}, HELLO, SEARCH, LOOK), "gpt-5", "neither stored nor sent"),
        (answer(HM, HELLO, SEARCH, LOOK).model_copy(update={"reasoning": "Ha."}), "gpt-5", ""),
        (answer(HM, HELLO, SEARCH, LOOK).model_copy(update={"reasoning": "Ha ha."}), "gpt-5", "changed"),
        (answer(HM, {"type": "computer_call", "call_id": "c"}, HELLO, LOOK), "gpt-5", "without an output"),
    ],
)
def test_items_are_sent_back_completely_or_as_plain_messages(message: Message, model: str, why: str) -> None:
    notices: list[str] = []
    sent = encode([message, RESULT], make_codec(model), notices)["input"]
    if not why:
        # Changed texts of equal length are not detected.
        assert [item.get("id") for item in sent] == ["rs_1", "msg_1", "ws_1", "fc_1", None]
        return
    assert sent == [*PLAIN, OUTPUT]
    assert len(notices) == 1
    assert why in notices[0]


def test_changed_text_is_sent_without_its_reasoning() -> None:
    changed = answer(HM, HELLO, LOOK).model_copy(update={"content": "Something else"})
    assert encode([changed, RESULT])["input"] == [
        {"role": "assistant", "content": "Something else"},
        PLAIN_LOOK,
        OUTPUT,
    ]


def test_stored_reasoning_is_sent_back_by_id() -> None:
    stored = {**HM, "encrypted_content": None}
    assert encode([answer(stored, HELLO, store=True)])["input"] == [stored, HELLO]


def test_reasoning_of_open_models_is_sent_back_unencrypted() -> None:
    full = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    by = make_codec("gpt-oss-20b", "http://localhost:8000/v1")
    message = last_message(read_events(response(full, HELLO), by))
    body = encode([message], by)
    assert body["input"] == [full, HELLO]
    assert not {"include", "reasoning"} & body.keys()


@pytest.mark.parametrize(
    ("model", "base"),
    [("gpt-5", "https://mine.openai.azure.com/openai/v1"), ("x/gpt-5", OPENAI), ("gpt-5", "http://localhost:8000/v1")],
)
def test_encrypted_reasoning_is_not_sent_to_another_endpoint(model: str, base: str) -> None:
    notices: list[str] = []
    message = answer(HM, HELLO, LOOK)
    assert encode([message, RESULT], make_codec(model, base), notices)["input"] == [*PLAIN, OUTPUT]
    theirs = "the provider state of responses@api.openai.com"
    assert notices == [f"openai_responses:{model} does not receive {theirs}"]
    encode([message, RESULT], make_codec(model, base), notices)
    assert len(notices) == 1  # once for a message


def test_foreign_provider_state_is_omitted_with_a_notice() -> None:
    notices: list[str] = []
    foreign = Message(
        role="assistant", content="Hello", reasoning="Hm.", provider_state={"anthropic_messages": [{"raw": {}}]}
    )
    assert encode([foreign], notices=notices)["input"] == [{"role": "assistant", "content": "Hello"}]
    assert notices == ["openai_responses:gpt-5 does not receive the provider state of anthropic_messages"]


def test_images_and_files_are_sent_except_those_of_the_model() -> None:
    image, pdf = ImagePart(data=b"cat", media_type="image/png"), FilePart(data=b"x", media_type="application/pdf")
    parts = [TextPart(text="Look."), image, ImagePart(url="https://e.org/a.png"), pdf, FilePart(url="https://e.org/a")]
    forms = [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": "data:image/png;base64,Y2F0", "detail": "auto"},
        {"type": "input_image", "image_url": "https://e.org/a.png", "detail": "auto"},
        {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,eA=="},
        {"type": "input_file", "file_url": "https://e.org/a"},
    ]
    notices: list[str] = []
    call_message = Message.assistant([TextPart(text="See:"), image], tool_calls=[ToolCall(id="call_1", name="look")])
    sent = encode([Message.user(parts), call_message, Message.tool("call_1", parts)], notices=notices)["input"]
    assert sent[0] == {"role": "user", "content": forms}
    assert sent[1] == {"role": "assistant", "content": "See:"}
    assert sent[3] == {"type": "function_call_output", "call_id": "call_1", "output": forms}
    assert notices == ["openai_responses:gpt-5 does not receive images and files of the model itself"]


def test_missing_results_are_added_and_unmatched_results_become_text() -> None:
    notices: list[str] = []
    call_message = Message.assistant(tool_calls=[ToolCall(id="0", name="look"), ToolCall(id="0", name="look")])
    unmatched_result = Message.tool("nobody's", "stray")
    history = [
        call_message,
        Message.tool("0", "a"),
        unmatched_result,
        Message.user("?"),
        call_message,
        Message.tool("0", "c"),
        Message.tool("0", "d"),
    ]
    sent = encode(history, notices=notices)["input"]
    calls = [item["call_id"] for item in sent if item.get("type") == "function_call"]
    outputs = {item["call_id"]: item["output"] for item in sent if item.get("type") == "function_call_output"}
    assert len(set(calls)) == 4
    assert [outputs[each] for each in calls] == ["a", "There is no result of this call.", "c", "d"]
    assert sent[4:6] == [{"role": "user", "content": "stray"}, {"role": "user", "content": "?"}]
    assert len(notices) == 2


def test_invalid_call_ids_and_names_are_replaced() -> None:
    call_message = Message.assistant(
        tool_calls=[ToolCall(id="x" * 100, name="functions.look:0"), ToolCall(id="", name="")]
    )
    sent = encode([call_message, Message.tool("x" * 100, "a"), Message.tool("", "b")])["input"]
    assert [item["name"] for item in sent[:2]] == ["functions_look_0", "unknown"]
    assert [item["call_id"] for item in sent[:2]] == [item["call_id"] for item in sent[2:]]
    assert all(1 <= len(item["call_id"]) <= 64 for item in sent)


def test_system_messages_become_instructions_except_in_the_middle() -> None:
    request = ModelRequest(
        system=(Message.system("Be kind."), Message.system("Be brief.")),
        messages=[Message.user("hi"), Message.assistant(""), Message.system("It is late."), Message.assistant("ok")],
        tail=(Message.user("now"),),
    )
    body = encode(request)
    assert body["instructions"] == "Be kind.\n\nBe brief."
    assert [(item["role"], item["content"]) for item in body["input"]] == [
        ("user", "hi"),
        ("system", "It is late."),
        ("assistant", "ok"),
        ("user", "now"),
    ]


def test_invalid_json_arguments_are_sent_as_an_empty_object() -> None:
    broken = ToolCall.parse("call_1", "look", '{"a": ')
    assert encode([Message.assistant(tool_calls=[broken]), RESULT])["input"][0]["arguments"] == "{}"
    kept = ToolCall.parse("call_1", "look", '{"a":  1}')
    assert encode([Message.assistant(tool_calls=[kept]), RESULT])["input"][0]["arguments"] == '{"a":  1}'
