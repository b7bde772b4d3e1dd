"""Message order and call ids required by Mistral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import FilePart, Message, ToolCall
from rxloop.providers import PRESETS, Preset
from rxloop.providers.codecs.chat import request as _encode
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.state.history import History
from support.vendors.codecs import ignore_notice

CALLS = Message.assistant(tool_calls=[ToolCall(id="call_abc", name="look"), ToolCall(id="call_abd", name="look")])
ANSWERS = (Message.tool("call_abc", "a cat"), Message.tool("call_abd", "a dog"))


def encode_messages(name: str, *messages: Message, tail: tuple[Message, ...] = ()) -> list[dict[str, Any]]:
    request = ModelRequest(system=(Message.system("Be brief."),), messages=History(messages), tail=tail)
    return orjson.loads(RequestEncoder("m", PRESETS[name], stream=True).encode(request, ignore_notice))["messages"]


def list_roles(*messages: Message, tail: tuple[Message, ...] = ()) -> list[str]:
    return [message["role"] for message in encode_messages("mistral", *messages, tail=tail)]


def test_user_message_after_tool_results_is_preceded_by_an_assistant_message() -> None:
    messages = encode_messages("mistral", Message.user("Hi"), CALLS, *ANSWERS, Message.user("And now in French."))
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    # Empty messages are rejected.
    assert messages[-2]["content"]
    assert messages[-1]["content"] == "And now in French."


def test_layers_after_the_history_follow_the_order() -> None:
    assert list_roles(Message.user("Hi"), CALLS, *ANSWERS, tail=(Message.user("Files: none"),))[-3:] == [
        "tool",
        "assistant",
        "user",
    ]


def test_late_system_message_becomes_a_user_message() -> None:
    late = Message.system("The user is in Oslo.")
    assert list_roles(Message.user("Hi"), CALLS, *ANSWERS, late)[-2:] == ["assistant", "user"]
    assert list_roles(Message.user("Hi"), Message.assistant("Hello."), late)[-2:] == ["assistant", "user"]
    assert list_roles(Message.user("Hi"), late)[-2:] == ["user", "system"]
    assert (
        encode_messages("mistral", Message.user("Hi"), CALLS, *ANSWERS, late)[-1]["content"] == "The user is in Oslo."
    )


def test_valid_order_is_unchanged() -> None:
    again = Message.assistant("A cat.")
    assert list_roles(Message.user("Hi"), CALLS, *ANSWERS) == ["system", "user", "assistant", "tool", "tool"]
    assert list_roles(Message.user("Hi"), CALLS, *ANSWERS, again, Message.user("?"))[-3:] == [
        "tool",
        "assistant",
        "user",
    ]


def test_other_vendors_get_the_messages_unchanged() -> None:
    assert [message["role"] for message in encode_messages("openai", CALLS, *ANSWERS, Message.user("?"))][-2:] == [
        "tool",
        "user",
    ]


def test_foreign_call_ids_become_nine_alphanumeric_characters() -> None:
    messages = encode_messages("mistral", Message.user("Hi"), CALLS, *ANSWERS)
    ids = [call["id"] for call in messages[2]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[3:]]
    assert len(set(ids)) == 2
    assert all(len(made) == 9 and made.isalnum() and made.isascii() for made in ids)
    assert encode_messages("mistral", Message.user("Hi"), CALLS, *ANSWERS) == messages


@pytest.mark.parametrize(
    ("given", "kept"), [("D681PevKs", True), ("0", False), ("D681PevK_", False), ("ærligtalt", False)]
)
def test_valid_call_id_is_unchanged(given: str, kept: bool) -> None:
    message = Message.assistant(tool_calls=[ToolCall(id=given, name="look")])
    made = encode_messages("mistral", message)[1]["tool_calls"][0]["id"]
    assert (made == given) is kept
    assert len(made) == 9


def test_message_sent_to_another_vendor_first_is_encoded_again() -> None:
    assert encode_messages("openai", CALLS, *ANSWERS)[1]["tool_calls"][0]["id"] == "call_abc"
    assert len(encode_messages("mistral", CALLS, *ANSWERS)[1]["tool_calls"][0]["id"]) == 9
    assert encode_messages("openai", CALLS, *ANSWERS)[2]["tool_call_id"] == "call_abc"


@pytest.mark.parametrize("fact", [{"short_call_ids": True}, {"file_part": "document_url"}, {"file_urls": True}])
def test_cached_form_is_not_shared_with_an_endpoint_that_differs(fact: dict[str, Any]) -> None:
    file = FilePart(data=b"%PDF", media_type="application/pdf")
    calls = Message.assistant(tool_calls=[ToolCall(id="call_abc", name="look")])
    request = ModelRequest(messages=[Message.user([file]), calls, Message.tool("call_abc", "a cat")])

    def body(preset: Preset) -> bytes:
        return RequestEncoder("m", preset, stream=True).encode(request, ignore_notice)

    with patch.object(_encode, "dumps", wraps=_encode.dumps) as dumps:
        body(PRESETS["openai"])
        first = dumps.call_count
        body(replace(PRESETS["openai"], **fact))
    assert dumps.call_count == 2 * first
