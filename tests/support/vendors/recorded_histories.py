"""Recorded conversations converted to message histories."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import orjson

from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from support.http_server import REQUEST, collect
from support.vendors.messages import to_message
from support.vendors.native import NATIVE
from support.vendors.recordings import Make, make_chat, recording, replay_server

Json = dict[str, Any]


async def read_history(name: str) -> list[Message]:
    """Return a recorded conversation's messages, excluding error responses."""
    conversation = recording(name)
    api = _API[conversation["api"]]
    make: Make = make_chat if api == "chat" else NATIVE[api].make
    history: list[Message] = []
    async with replay_server("httpx", make) as vendor:
        for number, exchange in enumerate(conversation["exchanges"]):
            messages = _read_request(exchange["request"]["body"], api)
            if history:
                last = max((place for place, each in enumerate(messages) if each.role == "assistant"), default=-1)
                messages = messages[last + 1 :]
            history += _match_results(messages, history)
            vendor.replay_conversation(conversation, number)
            answer = await collect(vendor.provider(exchange).call(REQUEST))
            complete = answer.events[-1] if answer.events else None
            if isinstance(complete, ContentCompleteEvent):
                history.append(to_message(complete))
    return history


_API = {"openai-chat": "chat", "anthropic-messages": "msgs", "google-generate": "gen", "openai-responses": "resp"}


def _match_results(said: list[Message], history: list[Message]) -> list[Message]:
    """Return messages whose results use generated call ids, because some vendors have no ids."""
    calls = [call.id for call in history[-1].tool_calls] if history and history[-1].role == "assistant" else []
    results = [message for message in said if message.role == "tool"]
    if len(results) != len(calls) or any(message.tool_call_id in calls for message in results):
        return said
    ids = iter(calls)
    return [Message.tool(next(ids), message.content) if message.role == "tool" else message for message in said]


def _read_request(body: Any, api: str) -> list[Message]:
    if not isinstance(body, dict):
        return []
    read = {"chat": _chat, "msgs": _messages, "gen": _contents, "resp": _items}[api]
    given = body.get({"gen": "contents", "resp": "input"}.get(api, "messages")) or []
    if isinstance(given, str):
        return [Message.user(given)]
    return [message for each in given for message in read(each)]


def _chat(message: Json) -> list[Message]:
    role, parts = message["role"], _parts(message.get("content"))
    if role == "tool":
        return [Message.tool(message["tool_call_id"], parts)]
    if role == "assistant":
        calls = [
            ToolCall.parse(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return [Message.assistant(parts, tool_calls=calls)]
    return [Message(role="user" if role == "user" else "system", content=list(parts))]


def _messages(message: Json) -> list[Message]:
    content = message["content"]
    blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    found = [
        Message.tool(block["tool_use_id"], _parts(block.get("content")))
        for block in blocks
        if block["type"] == "tool_result"
    ]
    calls = [
        ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if parts := _parts(blocks):
        found.append(Message(role=message["role"], content=list(parts), tool_calls=tuple(calls)))
    elif calls:
        found.append(Message.assistant("", tool_calls=calls))
    return found


def _contents(content: Json) -> list[Message]:
    role = "assistant" if content.get("role") == "model" else "user"
    results: list[Message] = []
    calls: list[ToolCall] = []
    parts: list[Part] = []
    for part in content["parts"]:
        if answer := part.get("functionResponse") or part.get("function_response"):
            results.append(Message.tool(answer.get("id") or "", orjson.dumps(answer["response"]).decode()))
        elif call := part.get("functionCall") or part.get("function_call"):
            calls.append(ToolCall(id=call.get("id") or "", name=call["name"], arguments=call.get("args") or {}))
        elif "text" in part:
            parts.append(TextPart(text=part["text"]))
        elif blob := part.get("inlineData") or part.get("inline_data"):
            kind = blob.get("mimeType") or blob.get("mime_type")
            parts.append(_media(kind, b64decode(blob["data"], b"-_")))
    said = [Message(role=role, content=parts, tool_calls=tuple(calls))] if parts or calls else []
    return [*results, *said]


def _items(item: Json) -> list[Message]:
    kind = item.get("type", "message")
    if kind == "function_call":
        return [Message.assistant("", tool_calls=[ToolCall.parse(item["call_id"], item["name"], item["arguments"])])]
    if kind == "function_call_output":
        return [Message.tool(item["call_id"], _parts(item["output"]))]
    if kind != "message":
        return []
    return [
        Message(role="system" if item["role"] == "developer" else item["role"], content=list(_parts(item["content"])))
    ]


def _parts(content: Any) -> list[Part]:
    if content is None or isinstance(content, str):
        return [TextPart(text=content)] if content else []
    return [part for each in content if (part := _part(each)) is not None]


def _part(block: Json) -> Part | None:
    kind = block["type"]
    if kind in ("text", "input_text", "output_text"):
        return TextPart(text=block["text"])
    if kind in ("image_url", "input_image"):
        url = block["image_url"]
        return ImagePart(url=url["url"] if isinstance(url, dict) else url)
    source = block.get("source")
    if source and source["type"] == "base64":
        return _media(source["media_type"], b64decode(source["data"]))
    return None


def _media(kind: str, data: bytes) -> Part:
    made = ImagePart if kind.startswith("image/") else FilePart
    return made(data=data, media_type=kind)
