"""Answers of the four vendor APIs, streamed and whole, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rxloop.providers import HTTPModel, Retry, anthropic_messages, google_gemini, openai_chat, openai_responses
from support.http_server import Reply, Server, delta, sse
from support.vendors.claude import call, start, text

Json = dict[str, Any]
APIS = [(api, stream) for api in ("chat", "messages", "gemini", "responses") for stream in (True, False)]
LENGTH = {"chat": "length", "messages": "max_tokens", "gemini": "MAX_TOKENS", "responses": "max_output_tokens"}
FILTER = {"chat": "content_filter", "messages": "refusal", "gemini": "SAFETY", "responses": "content_filter"}
NORMAL = {"chat": "stop", "messages": "end_turn", "gemini": "STOP", "responses": "completed"}


@dataclass(frozen=True)
class Said:
    """What a model says in one answer; the arguments of its calls are text, and may be incomplete."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    finish: str | None = None
    refusal: str = ""


def model(api: str, server: Server, *, stream: bool) -> HTTPModel:
    """Make the provider of an API, for a server in its place."""
    options: Any = {"base_url": server.base_url, "api_key": "a-key", "stream": stream, "retry": Retry(attempts=1)}
    if api == "chat":
        return openai_chat("m", **options)
    if api == "messages":
        return anthropic_messages("claude-sonnet-4-5", **options)
    if api == "gemini":
        return google_gemini("gemini-3-flash-preview", **options)
    return openai_responses("gpt-5", **options)


def reply(api: str, said: Said, *, stream: bool) -> Reply:
    """Make the HTTP answer of an API."""
    made = {"chat": _chat, "messages": _messages, "gemini": _gemini, "responses": _responses}[api](said, stream)
    if stream:
        return Reply(sse(*made, done=api == "chat"))
    return Reply([orjson.dumps(made[0])], content_type="application/json")


def _chat(said: Said, stream: bool) -> list[Json]:
    calls = [
        {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(said.calls)
    ]
    if not stream:
        message: Json = {"role": "assistant", "content": said.text or None}
        if calls:
            message["tool_calls"] = calls
        if said.refusal:
            message["refusal"] = said.refusal
        return [{"choices": [{"index": 0, "message": message, "finish_reason": said.finish}]}]
    deltas = [delta(content=said.text)] if said.text else []
    deltas += [delta(refusal=piece) for piece in _halves(said.refusal)]
    deltas += [delta(tool_calls=[each]) for each in calls]
    return [*deltas, delta(said.finish)]


def _messages(said: Said, stream: bool) -> list[Json]:
    if not stream:
        blocks: list[Json] = [{"type": "text", "text": said.text or said.refusal}] if said.text or said.refusal else []
        blocks += [
            {"type": "tool_use", "id": f"c{index}", "name": name, "input": _loose(arguments)}
            for index, (name, arguments) in enumerate(said.calls)
        ]
        return [{"type": "message", "role": "assistant", "content": blocks, "stop_reason": said.finish, "usage": {}}]
    events = [start()]
    if said.text or said.refusal:
        events += text(0, *_halves(said.text or said.refusal))
    for index, (name, arguments) in enumerate(said.calls):
        events += call(index + 1, f"c{index}", name, *([arguments] if arguments else []))
    end: list[Json] = [{"type": "message_delta", "delta": {"stop_reason": said.finish}, "usage": {}}]
    return [*events, *end, {"type": "message_stop"}]


def _gemini(said: Said, stream: bool) -> list[Json]:
    words = said.text or said.refusal
    parts: list[Json] = [{"text": words}] if words else []
    parts += [{"functionCall": {"name": name, "args": _loose(arguments)}} for name, arguments in said.calls]
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    if said.finish is not None:
        candidate["finishReason"] = said.finish
    return [{"candidates": [candidate]}]


def _responses(said: Said, stream: bool) -> list[Json]:
    output: list[Json] = []
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        output.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]})
    if said.refusal:
        part = {"type": "refusal", "refusal": said.refusal}
        output.append({"type": "message", "id": "m2", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {"type": "function_call", "id": f"f{index}", "call_id": f"c{index}", "name": name, "arguments": arguments}
        for index, (name, arguments) in enumerate(said.calls)
    ]
    response: Json = {"id": "r1", "object": "response", "output": output, "status": "completed"}
    if said.finish not in (None, "completed"):
        response |= {"status": "incomplete", "incomplete_details": {"reason": said.finish}}
    if not stream:
        return [response]
    events: list[Json] = []
    for index, item in enumerate(output):
        about: Json = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        for part in item.get("content", ()):
            kind = part["type"]
            words = part["refusal" if kind == "refusal" else "text"]
            events += [
                {"type": f"response.{kind}.delta", "content_index": 0, "delta": piece, **about}
                for piece in _halves(words)
            ]
        if item.get("arguments"):
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **about})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events, {"type": f"response.{response['status']}", "response": response}]


def _halves(words: str) -> list[str]:
    return [piece for piece in (words[: len(words) // 2], words[len(words) // 2 :]) if piece]


def _loose(arguments: str) -> Any:
    """The arguments as an object, as APIs send them that know no incomplete ones."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
