"""The items of a response, as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall, Usage
from rxloop.protocol.questions import PendingInput

Json = dict[str, Any]

LABEL = "rxloop"
"""The `server_label` of the tools that the agent has: a client sees them as those of an MCP server."""


def text_part(text: str, annotations: Sequence[Json] = ()) -> Json:
    """The text of a message, and the pages that it rests on."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def url_citations(message: ContentCompleteEvent, text: str, offset: int = 0) -> list[Json]:
    """The pages that a message rests on, where its text is what was shown of it.

    Args:
        message: What the model has said.
        text: What was shown.
        offset: Where that begins in the text of the answer.
    """
    if text != message.content:
        return []
    return [
        {
            "url": each.url,
            "title": each.title or each.url,
            "start_index": offset + (each.start or 0),
            "end_index": offset + (len(text) if each.end is None else each.end),
        }
        for each in message.citations
        if each.url and each.url.startswith(("https://", "http://"))
    ]


def message(id: str, status: str, *parts: Json) -> Json:
    """A message of the agent."""
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(parts)}


def reasoning(id: str, status: str, *texts: str) -> Json:
    """Reasoning of the model."""
    summary = [{"type": "summary_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": id, "summary": summary, "status": status}


def mcp_call(id: str, name: str, approval: str | None) -> Json:
    """A call of a tool of the agent, as it begins."""
    call = {"type": "mcp_call", "id": id, "server_label": LABEL, "name": name, "arguments": "", "status": "in_progress"}
    return {**call, "approval_request_id": approval, "output": None, "error": None}


def answered(item: Json, result: ToolCompleteEvent) -> Json:
    """A call of a tool of the agent with its result."""
    if result.success:
        return {**item, "status": "completed", "output": result.content}
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.content}]}
    return {**item, "status": "failed", "error": error}


def approval_request(id: str, question: PendingInput) -> Json:
    """A question that is answered by yes or no."""
    call = question.call
    name, arguments = ("confirm", "{}") if call is None else (call.name, arguments_of(call))
    return {"type": "mcp_approval_request", "id": id, "server_label": LABEL, "name": name, "arguments": arguments}


def function_call(call_id: str, question: PendingInput) -> Json:
    """A call that the client carries out."""
    call = question.call
    name, arguments = ("", "{}") if call is None else (call.name, _json(call.arguments))
    item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
    return {**item, "name": name, "arguments": arguments}


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call, as the model wrote them where that is known."""
    return call.raw if call.raw is not None else orjson.dumps(call.arguments).decode()


def asking(question: PendingInput) -> str:
    """The words of a question that is answered in words."""
    words = [question.prompt]
    if question.options:
        words.append("\n".join(f"- {each if isinstance(each, str) else _json(each)}" for each in question.options))
    if question.url is not None:
        words.append(question.url)
    return "\n\n".join(words)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def usage_of(usage: Usage, before: Usage | None) -> Json:
    """The tokens of one response, out of those of the run up to its end and up to its beginning."""
    before = before or Usage()
    read, written = usage.input_tokens - before.input_tokens, usage.output_tokens - before.output_tokens
    cached, thought = usage.cached_tokens - before.cached_tokens, usage.reasoning_tokens - before.reasoning_tokens
    kept = usage.cache_write_tokens - before.cache_write_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": kept},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + written,
    }
