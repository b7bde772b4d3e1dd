"""The conversation as Claude takes it: its turns, and what of other vendors' messages goes in other words."""

from __future__ import annotations

import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from support.vendors.claude import Json, encode, make_codec

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})
PNG = ImagePart(data=b"\x89PNG", media_type="image/png")
PDF = FilePart(data=b"%PDF", media_type="application/pdf", filename="report.pdf")


def said(*texts: str) -> list[Json]:
    return [{"type": "text", "text": each} for each in texts]


def calling(*ids: str, name: str = "look", text: str = "") -> Message:
    return Message.assistant(text, tool_calls=[ToolCall(id=each, name=name, arguments={"at": each}) for each in ids])


def result(call_id: str, content: str) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def sent(*messages: Message) -> list[Json]:
    return encode(ModelRequest(messages=messages, tools=(LOOK,))).messages


def test_a_conversation_goes_as_turns_of_blocks() -> None:
    asked = encode([Message.system("Be kind."), Message.user("hi"), Message.assistant("hello"), Message.user("bye")])
    assert [block["text"] for block in asked["system"]] == ["Be kind."]
    assert asked.messages == [
        {"role": "user", "content": said("hi")},
        {"role": "assistant", "content": said("hello")},
        {"role": "user", "content": said("bye")},
    ]


def test_answers_to_calls_of_one_turn_go_together_and_before_what_else_is_said() -> None:
    turns = sent(
        Message.user("hi"), calling("a", "b"), Message.tool("a", "1"), Message.user("well?"), Message.tool("b", "2")
    )
    assert turns[1]["content"][1] == {"type": "tool_use", "id": "b", "name": "look", "input": {"at": "b"}}
    assert turns[2] == {"role": "user", "content": [result("a", "1"), result("b", "2"), *said("well?")]}


def test_ids_that_repeat_become_different_ones_with_their_answers() -> None:
    turns = sent(
        Message.user("hi"),
        calling("0", "0"),
        Message.tool("0", "first"),
        Message.tool("0", "second"),
        calling("0"),
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


def test_an_id_with_characters_of_another_vendor_becomes_one_that_is_taken() -> None:
    turns = sent(Message.user("hi"), calling("functions.look:0"), Message.tool("functions.look:0", "1"))
    sent_id = turns[1]["content"][0]["id"]
    assert sent_id.startswith("call_")
    assert turns[2]["content"][0]["tool_use_id"] == sent_id


def test_a_call_without_an_answer_gets_one_that_says_so() -> None:
    turns = sent(Message.user("hi"), calling("a", "b"), Message.tool("b", "2"), Message.user("well?"))
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "tool_result", "text"]
    missing = turns[2]["content"][1]
    assert (missing["tool_use_id"], missing["is_error"]) == ("a", True)
    assert sent(Message.user("hi"), calling("a"))[2]["content"][0]["is_error"]
    assert sent(Message.user("hi"), calling("a"), calling("b"))[2]["content"][0]["tool_use_id"] == "a"


def test_an_answer_to_no_call_goes_as_words() -> None:
    turns = sent(Message.user("hi"), Message.tool("gone", "42"), Message.user("well?"))
    assert turns == [
        {"role": "user", "content": said("hi", "[An answer to a call that is not there any more.]\n42", "well?")}
    ]


def test_a_conversation_that_was_cut_begins_with_the_user_and_ends_there() -> None:
    turns = encode([Message.assistant("hello"), Message.user("go"), Message.assistant("x ")]).messages
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert encode([]).messages == [{"role": "user", "content": said("Please begin.")}]


def test_a_model_that_goes_on_with_its_own_words_gets_them_last() -> None:
    begun = [Message.user("a haiku"), Message.assistant("Autumn")]
    assert encode(begun, model="claude-sonnet-4-5").messages[-1]["role"] == "assistant"
    assert encode(begun, model="claude-sonnet-4-6").messages[-1] == {"role": "user", "content": said("Please go on.")}


def test_blank_texts_and_messages_are_left_out() -> None:
    turns = sent(
        Message.user("hi"), Message.assistant(" \n"), Message.user([TextPart(text=""), PNG, TextPart(text="look")])
    )
    assert [block["type"] for block in turns[0]["content"]] == ["text", "image", "text"]


def test_images_and_documents_go_in_every_form() -> None:
    parts = [
        PNG,
        ImagePart(url="https://example.org/a.png"),
        ImagePart(url="data:image/gif;base64,R0lG"),
        PDF,
        FilePart(url="https://example.org/b.pdf"),
        FilePart(data="Grüße".encode(), media_type="text/markdown", filename="a.md"),
    ]
    asked = encode([Message.user(parts)])
    base64 = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert asked.messages[0]["content"] == [
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
    assert not asked.notices


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
def test_a_file_that_is_not_taken_goes_as_words_and_is_told(part: ImagePart | FilePart) -> None:
    asked = encode([Message.user([part])])
    assert asked.messages[0]["content"] == said(part.placeholder)
    assert part.placeholder in asked.notices[0]


def test_a_result_has_images_and_documents_in_it() -> None:
    turns = sent(Message.user("hi"), calling("a"), Message.tool("a", [TextPart(text="two"), PNG, PDF]))
    content = turns[2]["content"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image", "document"]


def test_images_of_the_model_go_as_words() -> None:
    asked = encode([Message.user("draw"), Message.assistant([TextPart(text="here"), PNG]), Message.user("nice")])
    assert asked.messages[1]["content"] == said("here", PNG.placeholder)
    assert len(asked.notices) == 1


def test_what_is_left_out_of_a_message_is_told_once() -> None:
    foreign = Message(role="assistant", content="hi", provider_state={"openai": [{"raw": {}}], "google": []})
    by = make_codec()
    assert encode([Message.user("a"), foreign, Message.user("b")], by).notices == [
        "anthropic:claude-sonnet-4-5 does not receive the provider state of google, openai"
    ]
    assert not encode([Message.user("a"), foreign, Message.user("b")], by).notices


def test_calls_of_earlier_turns_need_a_definition_where_no_tool_is_offered() -> None:
    asked = encode([Message.user("hi"), calling("a"), Message.tool("a", "1")])
    assert asked["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert asked["tool_choice"] == {"type": "none"}


SYSTEM = [Message.user("hi"), Message.system("Be brief."), Message.assistant("ok"), Message.user("go")]


def test_a_system_message_in_the_middle_goes_as_such_where_the_model_takes_it() -> None:
    turns = encode(SYSTEM, model="claude-opus-4-8").messages
    assert [turn["role"] for turn in turns] == ["user", "system", "assistant", "user"]
    turns = encode([Message.user("hi"), Message.system("a"), Message.system("b")], model="claude-opus-4-8").messages
    assert turns[1] == {"role": "system", "content": said("a", "b")}


def test_elsewhere_the_user_says_what_it_says() -> None:
    turns = encode(SYSTEM).messages
    assert turns[0]["content"] == said("hi", "<system>\nBe brief.\n</system>")
    before = [Message.user("hi"), Message.system("Be brief."), Message.user("go")]
    assert [turn["role"] for turn in encode(before, model="claude-opus-4-8").messages] == ["user"]
    called = [Message.user("hi"), calling("a"), Message.system("Be brief."), Message.tool("a", "1")]
    assert [turn["role"] for turn in encode(called, model="claude-opus-4-8").messages] == ["user", "assistant", "user"]


def test_the_turns_beside_one_of_which_nothing_is_left_are_one() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    cut = Message(role="assistant", provider_state={"anthropic": [{"raw": search}]})
    assert encode([Message.user("Hi"), cut, Message.user("And?")]).messages == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "And?"}]}
    ]
