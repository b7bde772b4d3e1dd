"""Responses of the four vendor APIs, streamed and whole."""

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
class ModelAnswer:
    """Model response, including incomplete call arguments."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    finish: str | None = None
    refusal: str = ""


def model(api: str, server: Server, *, stream: bool) -> HTTPModel:
    """Return the provider of an API for a local server."""
    options: Any = {"base_url": server.base_url, "api_key": "a-key", "stream": stream, "retry": Retry(attempts=1)}
    if api == "chat":
        return openai_chat("m", **options)
    if api == "messages":
        return anthropic_messages("claude-sonnet-4-5", **options)
    if api == "gemini":
        return google_gemini("gemini-3-flash-preview", **options)
    return openai_responses("gpt-5", **options)


def reply(api: str, answer: ModelAnswer, *, stream: bool) -> Reply:
    """Create an HTTP response."""
    payloads = {"chat": _chat, "messages": _messages, "gemini": _gemini, "responses": _responses}[api](answer, stream)
    if stream:
        return Reply(sse(*payloads, done=api == "chat"))
    return Reply([orjson.dumps(payloads[0])], content_type="application/json")


def _chat(answer: ModelAnswer, stream: bool) -> list[Json]:
    calls = [
        {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(answer.calls)
    ]
    if not stream:
        message: Json = {"role": "assistant", "content": answer.text or None}
        if calls:
            message["tool_calls"] = calls
        if answer.refusal:
            message["refusal"] = answer.refusal
        return [{"choices": [{"index": 0, "message": message, "finish_reason": answer.finish}]}]
    deltas = [delta(content=answer.text)] if answer.text else []
    deltas += [delta(refusal=piece) for piece in _halves(answer.refusal)]
    deltas += [delta(tool_calls=[each]) for each in calls]
    return [*deltas, delta(answer.finish)]


def _messages(answer: ModelAnswer, stream: bool) -> list[Json]:
    if not stream:
        blocks: list[Json] = (
            [{"type": "text", "text": answer.text or answer.refusal}] if answer.text or answer.refusal else []
        )
        blocks += [
            {"type": "tool_use", "id": f"c{index}", "name": name, "input": _parse_arguments(arguments)}
            for index, (name, arguments) in enumerate(answer.calls)
        ]
        return [{"type": "message", "role": "assistant", "content": blocks, "stop_reason": answer.finish, "usage": {}}]
    events = [start()]
    if answer.text or answer.refusal:
        events += text(0, *_halves(answer.text or answer.refusal))
    for index, (name, arguments) in enumerate(answer.calls):
        events += call(index + 1, f"c{index}", name, *([arguments] if arguments else []))
    end: list[Json] = [{"type": "message_delta", "delta": {"stop_reason": answer.finish}, "usage": {}}]
    return [*events, *end, {"type": "message_stop"}]


def _gemini(answer: ModelAnswer, stream: bool) -> list[Json]:
    words = answer.text or answer.refusal
    parts: list[Json] = [{"text": words}] if words else []
    parts += [{"functionCall": {"name": name, "args": _parse_arguments(arguments)}} for name, arguments in answer.calls]
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    if answer.finish is not None:
        candidate["finishReason"] = answer.finish
    return [{"candidates": [candidate]}]


def _responses(answer: ModelAnswer, stream: bool) -> list[Json]:
    output: list[Json] = []
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        output.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]})
    if answer.refusal:
        part = {"type": "refusal", "refusal": answer.refusal}
        output.append({"type": "message", "id": "m2", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {"type": "function_call", "id": f"f{index}", "call_id": f"c{index}", "name": name, "arguments": arguments}
        for index, (name, arguments) in enumerate(answer.calls)
    ]
    response: Json = {"id": "r1", "object": "response", "output": output, "status": "completed"}
    if answer.finish not in (None, "completed"):
        response |= {"status": "incomplete", "incomplete_details": {"reason": answer.finish}}
    if not stream:
        return [response]
    events: list[Json] = []
    for index, item in enumerate(output):
        about: Json = {"output_index": index, "item_id": item["id"]}
        empty_item = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty_item})
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


def _parse_arguments(arguments: str) -> Any:
    """Parse the arguments for APIs that require complete objects."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
