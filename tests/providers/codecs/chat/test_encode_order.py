"""What Mistral's chat template refuses: the order of messages, and the ids of tool calls."""

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


def sent(name: str, *messages: Message, tail: tuple[Message, ...] = ()) -> list[dict[str, Any]]:
    request = ModelRequest(system=(Message.system("Be brief."),), messages=History(messages), tail=tail)
    return orjson.loads(RequestEncoder("m", PRESETS[name], stream=True).encode(request, ignore_notice))["messages"]


def roles(*messages: Message, tail: tuple[Message, ...] = ()) -> list[str]:
    return [message["role"] for message in sent("mistral", *messages, tail=tail)]


def test_a_message_of_the_user_behind_the_answers_to_calls_has_an_assistant_between() -> None:
    messages = sent("mistral", Message.user("Hi"), CALLS, *ANSWERS, Message.user("And now in French."))
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    # One without content and calls is refused.
    assert messages[-2]["content"]
    assert messages[-1]["content"] == "And now in French."


def test_the_layers_behind_the_history_count_as_well() -> None:
    assert roles(Message.user("Hi"), CALLS, *ANSWERS, tail=(Message.user("Files: none"),))[-3:] == [
        "tool",
        "assistant",
        "user",
    ]


def test_a_system_message_in_the_middle_is_one_of_the_user() -> None:
    late = Message.system("The user is in Oslo.")
    assert roles(Message.user("Hi"), CALLS, *ANSWERS, late)[-2:] == ["assistant", "user"]
    assert roles(Message.user("Hi"), Message.assistant("Hello."), late)[-2:] == ["assistant", "user"]
    assert roles(Message.user("Hi"), late)[-2:] == ["user", "system"]
    assert sent("mistral", Message.user("Hi"), CALLS, *ANSWERS, late)[-1]["content"] == "The user is in Oslo."


def test_what_is_in_order_is_sent_as_it_is() -> None:
    again = Message.assistant("A cat.")
    assert roles(Message.user("Hi"), CALLS, *ANSWERS) == ["system", "user", "assistant", "tool", "tool"]
    assert roles(Message.user("Hi"), CALLS, *ANSWERS, again, Message.user("?"))[-3:] == ["tool", "assistant", "user"]


def test_other_vendors_get_the_messages_as_they_are() -> None:
    assert [message["role"] for message in sent("openai", CALLS, *ANSWERS, Message.user("?"))][-2:] == ["tool", "user"]


def test_the_ids_of_another_vendor_become_nine_letters_and_digits_that_still_match() -> None:
    messages = sent("mistral", Message.user("Hi"), CALLS, *ANSWERS)
    ids = [call["id"] for call in messages[2]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[3:]]
    assert len(set(ids)) == 2
    assert all(len(made) == 9 and made.isalnum() and made.isascii() for made in ids)
    assert sent("mistral", Message.user("Hi"), CALLS, *ANSWERS) == messages


@pytest.mark.parametrize(
    ("given", "kept"), [("D681PevKs", True), ("0", False), ("D681PevK_", False), ("ærligtalt", False)]
)
def test_an_id_that_will_do_is_kept(given: str, kept: bool) -> None:
    message = Message.assistant(tool_calls=[ToolCall(id=given, name="look")])
    made = sent("mistral", message)[1]["tool_calls"][0]["id"]
    assert (made == given) is kept
    assert len(made) == 9


def test_a_message_that_went_to_another_vendor_first_is_encoded_anew() -> None:
    assert sent("openai", CALLS, *ANSWERS)[1]["tool_calls"][0]["id"] == "call_abc"
    assert len(sent("mistral", CALLS, *ANSWERS)[1]["tool_calls"][0]["id"]) == 9
    assert sent("openai", CALLS, *ANSWERS)[2]["tool_call_id"] == "call_abc"


@pytest.mark.parametrize("fact", [{"short_call_ids": True}, {"file_part": "document_url"}, {"file_urls": True}])
def test_no_message_keeps_the_form_of_an_endpoint_that_differs_in_one_fact(fact: dict[str, Any]) -> None:
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
