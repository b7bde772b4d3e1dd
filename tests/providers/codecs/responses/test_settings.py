"""What a request says besides its conversation."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import BadRequest, ConfigurationError
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import HTTPModel, Preset, openai_responses, resolve_model
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.state.history import History
from support.vendors.responses import (
    WHERE,
    call,
    encode,
    last_message,
    make_codec,
    read_events,
    reasoning,
    response,
    text,
)

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "City",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


def body(
    model: str = "gpt-5", left_out: list[str] | None = None, tools: bool = False, **settings: Any
) -> dict[str, Any]:
    request = ModelRequest(
        messages=[Message.user("hi")], settings=ModelSettings(**settings), tools=(LOOK,) if tools else ()
    )
    return encode(request, make_codec(model))


def test_nothing_is_stored_and_what_is_reasoned_comes_encrypted() -> None:
    assert body() == {
        "model": "gpt-5",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": "hi"}],
    }
    assert "include" not in body("gpt-4o")
    assert body("my-deployment", reasoning_effort="low")["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("model", "settings", "sent", "told"),
    [
        ("gpt-5", {"temperature": 1.0, "top_p": 0.5}, {}, ["temperature", "top_p"]),
        ("gpt-5.2", {"top_p": 1.0, "reasoning_effort": "none"}, {"top_p": 1.0, "reasoning": {"effort": "none"}}, []),
        ("gpt-4o", {"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}, []),
        ("gpt-4o", {"reasoning_effort": "low"}, {}, ["reasoning_effort"]),
        ("gpt-5", {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, []),
        ("gpt-5", {"stop": ["x"], "seed": 7, "thinking_budget": 9}, {}, ["thinking_budget", "stop", "seed"]),
        ("gpt-5", {"max_tokens": 100}, {"max_output_tokens": 100}, []),
        ("gpt-5", {"max_tokens": 5}, {"max_output_tokens": 16}, ["max_tokens=5"]),
        ("llama", {"max_tokens": 5}, {"max_output_tokens": 5}, []),
        ("gpt-5", {"service_tier": "flex"}, {"service_tier": "flex"}, []),
        ("gpt-5", {"tool_choice": "required", "parallel_tool_calls": False}, {}, []),
    ],
)  # fmt: skip
def test_what_the_vendor_has_no_word_for_is_left_out_and_told_once(
    model: str, settings: dict[str, Any], sent: dict[str, Any], told: list[str]
) -> None:
    by, heard = make_codec(model), list[str]()
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(**settings))
    found = encode(request, by, heard)
    assert encode(request, by, heard) == found
    assert {
        name: value for name, value in found.items() if name not in ("model", "stream", "store", "include", "input")
    } == sent
    begin = f"openai_responses:{model} does not accept "
    assert all(what.startswith(begin) for what in heard)
    assert [what.removeprefix(begin).partition(",")[0].partition(";")[0] for what in heard] == told


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ("auto", "auto"),
        ("look", {"type": "function", "name": "look"}),
        ("run", {"type": "custom", "name": "run"}),
        ("wiki", {"type": "mcp", "server_label": "wiki"}),
        ("web_search", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}),
    ],
)
def test_a_tool_is_chosen_by_its_name(choice: str, form: Any) -> None:
    theirs: list[dict[str, Any]] = [
        {"type": "custom", "name": "run"},
        {"type": "mcp", "server_label": "wiki", "server_url": "https://e.org"},
        {"type": "web_search"},
    ]
    found = body(tools=True, tool_choice=choice, server_tools=theirs)
    assert found["tool_choice"] == form
    ours = {"type": "function", "name": "look", "description": "Looks.", "parameters": LOOK.parameters, "strict": False}
    assert found["tools"] == [ours, *theirs]


def test_a_schema_goes_as_the_format_of_the_text_beside_what_one_says_of_it() -> None:
    settings = ModelSettings(extra_body={"text": {"verbosity": "low"}, "metadata": {"a": "b"}})
    request = ModelRequest(messages=[Message.user("hi")], response_schema=SCHEMA, settings=settings, tools=(LOOK,))
    found = encode(request)
    schema = {**SCHEMA, "additionalProperties": False}
    asked = {"type": "json_schema", "name": "City", "schema": schema, "strict": True}
    assert found["text"] == {"format": asked, "verbosity": "low"}
    assert found["metadata"] == {"a": "b"}


def test_fields_of_one_s_own_go_last_and_untouched() -> None:
    found = body(
        extra_body={"input": "hi!", "tools": [], "store": True, "reasoning": {"summary": "auto"}},
        reasoning_effort="low",
    )
    assert (found["input"], found["tools"], found["store"]) == ("hi!", [], True)
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}


def test_an_answer_in_the_background_is_refused_where_it_is_not_streamed() -> None:
    model = openai_responses("gpt-5", stream=False, api_key="k")
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(extra_body={"background": True}))
    with pytest.raises(BadRequest, match="stream=True"):
        model._wire.encode(request, lambda code, what: None)  # pyright: ignore[reportPrivateUsage]


FIRST = [Message.user("hi"), last_message(read_events(response(text("Hello"), call("look", "{}"), store=True)))]
NEXT = [*FIRST, Message.tool("call_1", "a cat")]


def test_a_chain_sends_what_is_new_since_the_answer_that_is_stored() -> None:
    by, told = make_codec(chain=True), list[str]()
    assert encode(FIRST[:1], by, told)["store"] is True
    found = encode(NEXT, by, told)
    assert found["previous_response_id"] == "resp_1"
    assert found["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "a cat"}]
    assert told == []


@pytest.mark.parametrize(
    "history",
    [
        [Message.user("hi!"), *NEXT[1:]],
        NEXT[1:],
        [
            *NEXT[:2],
            Message.tool("call_1", "a cat"),
            last_message(read_events(response(text("x"), store=True))),
            Message.user("y"),
        ],
    ],
)
def test_a_conversation_that_is_another_one_goes_whole_and_that_is_told(history: list[Message]) -> None:
    by, told = make_codec(chain=True), list[str]()
    encode(FIRST[:1], by)
    found = encode(history, by, told)
    assert "previous_response_id" not in found
    assert len(found["input"]) > len(history) - 1
    assert "previous_response_id" in told[0]


def test_what_a_wire_without_a_chain_has_built_tells_no_chain_which_conversation_it_is() -> None:
    by, plain = make_codec(chain=True), make_codec()
    mine, other = History([Message.user("hi")]), History([Message.user("hi!")])
    for each in (mine, other):
        encode(ModelRequest(messages=each), plain)
    encode(ModelRequest(messages=mine), by)
    found = encode(ModelRequest(messages=other.append(*NEXT[1:])), by)
    assert "previous_response_id" not in found


def test_results_for_a_stored_answer_have_the_ids_that_the_vendor_has_stored() -> None:
    # Gateways count the ids of calls anew in each answer.
    again = last_message(read_events(response(call("look", "{}"), store=True, id="resp_2")))
    before = [Message.user("hi"), FIRST[1], Message.tool("call_1", "a cat")]
    by = make_codec(chain=True)
    encode(before, by)
    found = encode([*before, again, Message.tool("call_1", "a dog")], by)
    assert found["previous_response_id"] == "resp_2"
    assert found["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "a dog"}]


def test_an_answer_that_the_vendor_no_longer_has_is_asked_for_again_whole() -> None:
    by = make_codec(chain=True)
    encode(FIRST[:1], by)
    assert "previous_response_id" in encode(NEXT, by)
    refused = b'{"error":{"code":"previous_response_not_found","message":"Previous response not found."}}'
    reader = by.reader(MessageDraft(lambda event: None, "1", WHERE))
    error = reader.refusal(400, {}, refused)
    assert isinstance(error, BadRequest)
    assert error.retryable
    assert "previous_response_id" not in encode(NEXT, by)
    assert not reader.refusal(400, {}, b'{"error":{"message":"no"}}').retryable


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (resolve_model("openai:gpt-5"), "openai:gpt-5"),
        (resolve_model("openai_responses:gpt-4o"), "openai_responses:gpt-4o"),
        (openai_responses("gpt-5", preset="openai"), "openai:gpt-5"),
        (openai_responses("gpt-4o", preset="openai"), "openai_responses:gpt-4o"),
        (openai_responses("m", base_url="http://localhost:8000/v1"), "openai_responses:http://localhost:8000/v1#m"),
        (openai_responses("m", preset=Preset(name="mine", base_url="http://m/v1")), "mine:m"),
        (openai_responses("openai/gpt-5", preset="openrouter"), "openrouter:openai/gpt-5"),
    ],
)
def test_a_model_is_called_by_what_makes_it_and_speaks_responses(made: HTTPModel, name: str) -> None:
    assert made.name == name
    assert made._wire.url("http://m/v1") == "http://m/v1/responses"  # pyright: ignore[reportPrivateUsage]


def test_two_models_of_which_one_takes_reasoning_share_a_history_and_not_what_was_built_of_it() -> None:
    thought = last_message(read_events(response(reasoning("Hm."), text("Hello"))))
    history = History([Message.user("hi"), thought, Message.user("And?")])
    for model, kinds in (
        ("gpt-5", {"reasoning", "message"}),
        ("gpt-4o", {"message"}),
        ("gpt-5", {"reasoning", "message"}),
    ):
        found = encode(ModelRequest(messages=history), make_codec(model))
        assert {item.get("type", "message") for item in found["input"]} == kinds


def test_a_chain_of_what_is_not_stored_and_another_vendor_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="chain=True"):
        openai_responses("gpt-5", store=False, chain=True)
    with pytest.raises(ConfigurationError, match="does not support"):
        openai_responses("gemini-3.5-flash", preset="google")
    assert openai_responses("gpt-5", summary="auto")._wire.keeps_to_schema  # pyright: ignore[reportPrivateUsage]
