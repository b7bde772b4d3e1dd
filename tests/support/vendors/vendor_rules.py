"""Requests that the four APIs reject with status 400 although their SDK types accept them, with sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from support.vendors.gemini import Body
from support.vendors.schema_rules import check_claude_tool, check_gemini_tool, check_openai_tool
from support.vendors.typed_dicts import find_mismatch

Json = dict[str, Any]
IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_SAMPLING = ("temperature", "top_p", "top_k")


def check_messages(body: Json) -> None:
    """Anthropic's Messages; docs.anthropic.com/en/api/messages, .../tool-use and .../extended-thinking."""
    params = MessageCreateParamsStreaming if body["stream"] else MessageCreateParamsNonStreaming
    # The SDK no longer declares parameters for models before Claude Opus 4.7.
    assert find_mismatch({name: value for name, value in body.items() if name not in _SAMPLING}, params) is None
    messages = body["messages"]
    # "messages: at least one message is required", "first message must use the user role"
    assert messages[0]["role"] == "user"
    waiting: list[str] = []
    used: set[str] = set()
    roles = [message["role"] for message in messages]
    assert all(one != other for one, other in pairwise(roles)), "two turns of one side"
    for number, message in enumerate(messages):
        content = message["content"]
        # "all messages must have non-empty content"
        assert content
        kinds = [block["type"] for block in content]
        answers = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if message["role"] == "user":
            # "tool_use ids were found without tool_result blocks immediately after"; results come first in it.
            assert kinds[: len(answers)] == ["tool_result"] * len(answers)
        # Each call has one result, and "unexpected tool_use_id found in tool_result blocks".
        assert sorted(answers) == sorted(waiting)
        waiting = [block["id"] for block in content if block["type"] == "tool_use"]
        # "tool_use ids must be unique"
        assert used.isdisjoint(waiting)
        assert len(set(waiting)) == len(waiting)
        used.update(waiting)
        for block in content:
            _check_block(block, message["role"])
        if message["role"] == "assistant" and number == len(messages) - 1 and content[-1]["type"] == "text":
            # "final assistant content cannot end with trailing whitespace"
            assert content[-1]["text"] == content[-1]["text"].rstrip()
    assert not waiting
    for tool in body.get("tools") or []:
        if "input_schema" in tool:
            check_claude_tool(tool)
    # "Requests which include tool_use or tool_result blocks must define tools"
    assert not used or body["tools"]


def _check_block(block: Json, role: str) -> None:
    kind = block["type"]
    if kind == "text":
        # "text content blocks must be non-empty", "must contain non-whitespace text"
        assert block["text"].strip()
    elif kind == "tool_use":
        # "String should match pattern '^[a-zA-Z0-9_-]+$'"; names have up to 128 characters.
        assert re.fullmatch("[a-zA-Z0-9_-]+", block["id"])
        assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", block["name"])
    elif kind == "tool_result":
        for part in block["content"] if isinstance(block["content"], list) else []:
            _check_block(part, role)
        # "content cannot be empty if `is_error` is true"
        assert block["content"] or not block.get("is_error")
    elif kind == "thinking":
        # "Invalid `signature` in `thinking` block"
        assert block["signature"]
    elif kind == "image":
        # "Assistant messages have no images"; the media types are those of the page on vision.
        assert role == "user"
        assert block["source"].get("media_type") in {None, *IMAGES}
    elif kind == "document":
        assert role == "user"
        assert block["source"].get("media_type") in {None, "application/pdf", "text/plain"}


def check_gemini(body: Json, *, has_signatures: bool = True) -> None:
    """Gemini's contents; ai.google.dev/gemini-api/docs/function-calling and .../thought-signatures."""
    Body.model_validate(body)
    for tool in body.get("tools") or []:
        for declaration in tool.get("functionDeclarations") or []:
            check_gemini_tool(declaration)
    contents = body["contents"]
    # "Please ensure that single turn requests end with a user role"
    assert contents[0]["role"] == contents[-1]["role"] == "user"
    awaited: list[tuple[str, Any]] = []
    for turn in contents:
        # "contents.parts must not be empty"
        assert turn["parts"]
        results = [each for part in turn["parts"] if (each := part.get("functionResponse"))]
        calls = [each for part in turn["parts"] if (each := part.get("functionCall"))]
        # "the number of function response parts is equal to the number of function call parts of the turn before"
        assert [(each["name"], each.get("id")) for each in results] == awaited
        assert not results or len(results) == len(turn["parts"])
        awaited = [(each["name"], each.get("id")) for each in calls]
        assert turn["role"] == "model" or not calls
        for part in turn["parts"]:
            # "required oneof field 'data' must have one initialized field"; a text may be empty beside a signature.
            data = part.keys() - {"thought", "thoughtSignature"}
            assert len(data) == 1, part
            assert part.get("text") != "" or "thoughtSignature" in part
            if call := part.get("functionCall") or part.get("functionResponse"):
                # "Name cannot be empty"
                assert call["name"]
            if blob := part.get("inlineData"):
                assert re.fullmatch("[a-z]+/.+", blob["mimeType"])
                assert blob["data"]
        if has_signatures and calls:
            # "Function call is missing a thought_signature": in the first call of a step, from Gemini 3 on.
            assert next(part for part in turn["parts"] if "functionCall" in part)["thoughtSignature"]
    assert not awaited
    roles = [turn["role"] for turn in contents]
    # "function call turn comes immediately after a user turn or after a function response turn"
    assert not any(one == other == "model" for one, other in pairwise(roles))


def check_responses(body: Json) -> None:
    """OpenAI's Responses; platform.openai.com/docs/guides/reasoning and .../function-calling."""
    kind = "Streaming" if body["stream"] else "NonStreaming"
    assert find_mismatch(body, getattr(response_create_params, f"ResponseCreateParams{kind}")) is None
    items = body["input"]
    assert items
    for tool in body.get("tools") or []:
        if tool["type"] == "function":
            check_openai_tool(tool)
    calls: dict[str, str] = {}
    answers: list[str] = []
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            # "string too long. Expected a string with maximum length 64"
            assert 1 <= len(item["call_id"]) <= 64
            assert item["call_id"] not in calls, "duplicate call_id"
            calls[item["call_id"]] = kind
            # "string does not match pattern '^[a-zA-Z0-9_-]+$'"
            assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", item["name"])
            if kind == "function_call":
                orjson.loads(item["arguments"])
        elif kind in ("function_call_output", "custom_tool_call_output"):
            # "No tool call found for function call output with call_id"
            assert calls[item["call_id"]] == kind.removesuffix("_output")
            answers.append(item["call_id"])
        elif kind == "reasoning":
            # "Item 'rs_...' of type 'reasoning' was provided without its required following item."
            after = items[number + 1] if number + 1 < len(items) else {"role": "user"}
            assert after.get("role") not in ("user", "system", "developer"), "reasoning that nothing follows"
            assert not after.get("type", "").endswith("_output"), "reasoning that nothing follows"
            # With store=false, an item is identified by its encrypted content or its text.
            assert item.get("encrypted_content") or item.get("content") or body["store"]
        elif kind == "message" and isinstance(item["content"], list):
            for part in item["content"]:
                if part["type"] == "input_image" and part["image_url"].startswith("data:"):
                    # "Expected a valid URL", "unsupported image": png, jpeg, webp, gif
                    assert part["image_url"][5:].partition(";")[0] in IMAGES
        if (own := item.get("id")) is not None:
            # "Expected an ID that begins with 'msg'", 'rs', 'fc'
            prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}.get(kind)
            assert prefix is None or own.startswith(prefix)
    # "No tool output found for function call"
    assert sorted(answers) == sorted(calls)


def check_chat(body: Json, *, id_length: int = 40, short_ids: bool = False, extensions: tuple[str, ...] = ()) -> None:
    """Check a chat request; platform.openai.com/docs/api-reference/chat, and docs.mistral.ai for `short_ids`.

    Args:
        body: Request body.
        id_length: Maximum length of call ids.
        short_ids: Require Mistral's call ids of nine letters and digits, and its order of roles.
        extensions: Message fields that a vendor has added.
    """
    checked = {**body, "messages": [_without(message, extensions) for message in body["messages"]]}
    checked.pop("random_seed", None)
    for message in checked["messages"] if short_ids else []:
        # Mistral's format for files.
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part["type"] != "document_url"]
    kind = "Streaming" if body["stream"] else "NonStreaming"
    assert find_mismatch(checked, getattr(chat_params, f"CompletionCreateParams{kind}")) is None
    assert body["messages"]
    for tool in body.get("tools") or []:
        if tool["type"] == "function":
            check_openai_tool(tool["function"])
    waiting: list[str] = []
    before = ""
    for message in body["messages"]:
        role = message["role"]
        if role == "tool":
            # "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
        else:
            # "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            assert not waiting, f"{role} before {waiting} have results"
        if role == "assistant":
            calls = message.get("tool_calls") or []
            waiting = [call["id"] for call in calls]
            for call in calls:
                # "string too long. Expected a string with maximum length 40"; Mistral: "must be a-z, A-Z, 0-9, 9 long"
                assert re.fullmatch("[a-zA-Z0-9]{9}" if short_ids else f"(?s).{{1,{id_length}}}", call["id"])
                assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", call["function"]["name"])
                orjson.loads(call["function"]["arguments"])
            # "Invalid value for 'content': expected a string, got null"; Mistral: "must have content or tool_calls"
            assert message["content"] or calls
        elif role == "user":
            assert message["content"]
        if short_ids:
            assert not (before == "tool" and role in ("user", "system"))
            assert not (before == "assistant" and role == "system")
        before = role
    assert not waiting
    # Mistral: "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
    assert not (short_ids and before == "assistant")


def _without(message: Json, extensions: tuple[str, ...]) -> Json:
    fields = {name: value for name, value in message.items() if name not in extensions}
    if "tool_calls" in fields:
        fields["tool_calls"] = [
            {name: value for name, value in call.items() if name not in extensions} for call in fields["tool_calls"]
        ]
    return fields


CHECKS: dict[str, Callable[[Json], None]] = {
    "chat": check_chat,
    "msgs": check_messages,
    "gen": check_gemini,
    "resp": check_responses,
}
