"""Tests of conversations encoded for Anthropic, including messages of other vendors."""

from __future__ import annotations

import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from support.vendors.claude import Json, encode, make_codec

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})
PNG = ImagePart(data=b"\x89PNG", media_type="image/png")
PDF = FilePart(data=b"%PDF", media_type="application/pdf", filename="report.pdf")


def text_blocks(*texts: str) -> list[Json]:
    return [{"type": "text", "text": each} for each in texts]


def call_message(*ids: str, name: str = "look", text: str = "") -> Message:
    return Message.assistant(text, tool_calls=[ToolCall(id=each, name=name, arguments={"at": each}) for each in ids])


def result_block(call_id: str, content: str) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def encode_messages(*messages: Message) -> list[Json]:
    return encode(ModelRequest(messages=messages, tools=(LOOK,))).messages


def test_conversation_is_encoded_as_turns_with_blocks() -> None:
    encoded = encode([Message.system("Be kind."), Message.user("hi"), Message.assistant("hello"), Message.user("bye")])
    assert [block["text"] for block in encoded["system"]] == ["Be kind."]
    assert encoded.messages == [
        {"role": "user", "content": text_blocks("hi")},
        {"role": "assistant", "content": text_blocks("hello")},
        {"role": "user", "content": text_blocks("bye")},
    ]


def test_tool_results_of_one_turn_are_grouped_before_other_content() -> None:
    turns = encode_messages(
        Message.user("hi"),
        call_message("a", "b"),
        Message.tool("a", "1"),
        Message.user("well?"),
        Message.tool("b", "2"),
    )
    assert turns[1]["content"][1] == {"type": "tool_use", "id": "b", "name": "look", "input": {"at": "b"}}
    assert turns[2] == {
        "role": "user",
        "content": [result_block("a", "1"), result_block("b", "2"), *text_blocks("well?")],
    }


def test_repeated_call_ids_become_unique_with_their_results() -> None:
    turns = encode_messages(
        Message.user("hi"),
        call_message("0", "0"),
        Message.tool("0", "first"),
        Message.tool("0", "second"),
        call_message("0"),
        Message.tool("0", "third"),
    )
    calls = [block["id"] for turn in turns for block in turn["content"] if block["type"] == "tool_use"]
    answers = [block for turn in turns for block in turn["content"] if block["type"] == "tool_result"]
    assert len(set(calls)) == 3
    assert [(each["tool_use_id"], each["content"]) for each in answers] == [
        (calls[0], "first"),
        (calls[1], "second"),
        (calls[2], "third"),
    ]


def test_invalid_call_id_of_another_vendor_is_replaced() -> None:
    turns = encode_messages(Message.user("hi"), call_message("functions.look:0"), Message.tool("functions.look:0", "1"))
    sent_id = turns[1]["content"][0]["id"]
    assert sent_id.startswith("call_")
    assert turns[2]["content"][0]["tool_use_id"] == sent_id


def test_call_without_a_result_gets_an_error_result() -> None:
    turns = encode_messages(Message.user("hi"), call_message("a", "b"), Message.tool("b", "2"), Message.user("well?"))
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "tool_result", "text"]
    missing = turns[2]["content"][1]
    assert (missing["tool_use_id"], missing["is_error"]) == ("a", True)
    assert encode_messages(Message.user("hi"), call_message("a"))[2]["content"][0]["is_error"]
    assert (
        encode_messages(Message.user("hi"), call_message("a"), call_message("b"))[2]["content"][0]["tool_use_id"] == "a"
    )


def test_result_without_a_call_is_sent_as_text() -> None:
    turns = encode_messages(Message.user("hi"), Message.tool("gone", "42"), Message.user("well?"))
    assert turns == [
        {"role": "user", "content": text_blocks("hi", "[An answer to a call that is not there any more.]\n42", "well?")}
    ]


def test_truncated_conversation_starts_and_ends_with_the_user() -> None:
    turns = encode([Message.assistant("hello"), Message.user("go"), Message.assistant("x ")]).messages
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert encode([]).messages == [{"role": "user", "content": text_blocks("Please begin.")}]


def test_unfinished_answer_is_sent_last_when_the_model_supports_prefill() -> None:
    begun = [Message.user("a haiku"), Message.assistant("Autumn")]
    assert encode(begun, model="claude-sonnet-4-5").messages[-1]["role"] == "assistant"
    assert encode(begun, model="claude-sonnet-4-6").messages[-1] == {
        "role": "user",
        "content": text_blocks("Please go on."),
    }


def test_blank_texts_and_messages_are_omitted() -> None:
    turns = encode_messages(
        Message.user("hi"), Message.assistant(" \n"), Message.user([TextPart(text=""), PNG, TextPart(text="look")])
    )
    assert [block["type"] for block in turns[0]["content"]] == ["text", "image", "text"]


def test_images_and_documents_are_encoded_in_every_form() -> None:
    parts = [
        PNG,
        ImagePart(url="https://example.org/a.png"),
        ImagePart(url="data:image/gif;base64,R0lG"),
        PDF,
        FilePart(url="https://example.org/b.pdf"),
        FilePart(data="Grüße".encode(), media_type="text/markdown", filename="a.md"),
    ]
    encoded = encode([Message.user(parts)])
    base64 = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert encoded.messages[0]["content"] == [
        {"type": "image", "source": base64},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            "title": "report.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.org/b.pdf"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
            "title": "a.md",
        },
    ]
    assert not encoded.notices


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(data=b"<svg/>", media_type="image/svg+xml"),
        ImagePart(url="gs://bucket/a.png"),
        FilePart(data=b"PK", media_type="application/zip", filename="a.zip"),
        FilePart(data=b"\xff", media_type="text/plain"),
        FilePart(url="https://example.org/a.zip"),
        FilePart(url="data:text/plain;base64,!"),
    ],
)
def test_unsupported_file_is_sent_as_text_with_a_notice(part: ImagePart | FilePart) -> None:
    encoded = encode([Message.user([part])])
    assert encoded.messages[0]["content"] == text_blocks(part.placeholder)
    assert part.placeholder in encoded.notices[0]


def test_tool_result_contains_images_and_documents() -> None:
    turns = encode_messages(Message.user("hi"), call_message("a"), Message.tool("a", [TextPart(text="two"), PNG, PDF]))
    content = turns[2]["content"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image", "document"]


def test_image_in_an_assistant_message_is_sent_as_text() -> None:
    encoded = encode([Message.user("draw"), Message.assistant([TextPart(text="here"), PNG]), Message.user("nice")])
    assert encoded.messages[1]["content"] == text_blocks("here", PNG.placeholder)
    assert len(encoded.notices) == 1


def test_notice_about_foreign_provider_state_is_reported_once() -> None:
    foreign = Message(role="assistant", content="hi", provider_state={"openai": [{"raw": {}}], "google": []})
    by = make_codec()
    assert encode([Message.user("a"), foreign, Message.user("b")], by).notices == [
        "anthropic:claude-sonnet-4-5 does not receive the provider state of google, openai"
    ]
    assert not encode([Message.user("a"), foreign, Message.user("b")], by).notices


def test_tools_of_earlier_calls_are_defined_when_no_tool_is_offered() -> None:
    encoded = encode([Message.user("hi"), call_message("a"), Message.tool("a", "1")])
    assert encoded["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert encoded["tool_choice"] == {"type": "none"}


SYSTEM = [Message.user("hi"), Message.system("Be brief."), Message.assistant("ok"), Message.user("go")]


def test_system_message_keeps_its_role_when_the_model_supports_it() -> None:
    turns = encode(SYSTEM, model="claude-opus-4-8").messages
    assert [turn["role"] for turn in turns] == ["user", "system", "assistant", "user"]
    turns = encode([Message.user("hi"), Message.system("a"), Message.system("b")], model="claude-opus-4-8").messages
    assert turns[1] == {"role": "system", "content": text_blocks("a", "b")}


def test_system_message_is_sent_as_user_text_when_its_role_is_unsupported() -> None:
    turns = encode(SYSTEM).messages
    assert turns[0]["content"] == text_blocks("hi", "<system>\nBe brief.\n</system>")
    before = [Message.user("hi"), Message.system("Be brief."), Message.user("go")]
    assert [turn["role"] for turn in encode(before, model="claude-opus-4-8").messages] == ["user"]
    called = [Message.user("hi"), call_message("a"), Message.system("Be brief."), Message.tool("a", "1")]
    assert [turn["role"] for turn in encode(called, model="claude-opus-4-8").messages] == ["user", "assistant", "user"]


def test_turns_around_an_omitted_message_are_merged() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    cut = Message(role="assistant", provider_state={"anthropic": [{"raw": search}]})
    assert encode([Message.user("Hi"), cut, Message.user("And?")]).messages == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "And?"}]}
    ]
