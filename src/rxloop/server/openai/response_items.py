"""JSON items and numbered events of a response."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent
from rxloop.protocol.messages import PendingInput, ToolCall, Usage

_ID = re.compile(r"([0-9a-f-]{36})(?:\.([1-9][0-9]{0,5}))?")

_LATER = ":response:"


class ResponseId(NamedTuple):
    """Response id, identifying part of a run.

    Each part starts with the run or with an answer, and ends when the run is idle.
    """

    task_id: str
    turn: int

    def __str__(self) -> str:
        return self.task_id if self.turn == 1 else f"{self.task_id}.{self.turn}"


def read_response_id(value: str) -> ResponseId | None:
    """Parse a response id, returning None if it is invalid."""
    found = _ID.fullmatch(value)
    if found is None or found[2] == "1":
        return None
    return ResponseId(found[1], int(found[2] or 1))


def approval_id(task_id: str, input_id: str) -> str:
    """Return a question's `approval_request_id`."""
    return f"mcpr_{task_id}:{input_id}"


def run_of(id: str) -> str:
    """Return the run id contained in an approval id or call id."""
    return id.removeprefix("mcpr_").partition(":")[0]


def later(id: str, turn: int) -> str:
    """Return a unique item id across a run's responses."""
    return id if turn == 1 else f"{id}{_LATER}{turn}"


def question_of(id: str) -> str:
    """Remove the response number from an item id."""
    return id.partition(_LATER)[0]


Json = dict[str, Any]

LABEL = "rxloop"
"""Server label for the agent's tools, shown to clients as MCP tools."""


def text_part(text: str, annotations: Sequence[Json] = ()) -> Json:
    """Create a text part with optional citations."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def url_citations(message: ContentCompleteEvent, text: str, offset: int = 0) -> list[Json]:
    """Return URL citations for a message, or an empty list if the shown text differs.

    Args:
        message: Complete message.
        text: Text that was shown.
        offset: Offset of the text within the answer.
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


def message_item(id: str, status: str, *parts: Json) -> Json:
    """Create an assistant message item."""
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(parts)}


def reasoning_item(id: str, status: str, *texts: str) -> Json:
    """Create a reasoning item."""
    summary = [{"type": "summary_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": id, "summary": summary, "status": status}


def mcp_call(id: str, name: str, approval: str | None) -> Json:
    """Create an item for a starting tool call."""
    call = {"type": "mcp_call", "id": id, "server_label": LABEL, "name": name, "arguments": "", "status": "in_progress"}
    return {**call, "approval_request_id": approval, "output": None, "error": None}


def answered(item: Json, result: ToolCompleteEvent) -> Json:
    """Add the result to a tool call item."""
    if result.success:
        return {**item, "status": "completed", "output": result.content}
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.content}]}
    return {**item, "status": "failed", "error": error}


def approval_request(id: str, question: PendingInput) -> Json:
    """Create an approval request item."""
    call = question.call
    name, arguments = ("confirm", "{}") if call is None else (call.name, arguments_of(call))
    return {"type": "mcp_approval_request", "id": id, "server_label": LABEL, "name": name, "arguments": arguments}


def function_call(call_id: str, question: PendingInput) -> Json:
    """Create a function call item for a client tool."""
    call = question.call
    name, arguments = ("", "{}") if call is None else (call.name, _json(call.arguments))
    item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
    return {**item, "name": name, "arguments": arguments}


def arguments_of(call: ToolCall) -> str:
    """Return a call's arguments as JSON, preferably as the model wrote them."""
    return call.raw if call.raw is not None else orjson.dumps(call.arguments).decode()


def asking(question: PendingInput) -> str:
    """Format a question as text with options and URL."""
    words = [question.prompt]
    if question.options:
        words.append("\n".join(f"- {each if isinstance(each, str) else _json(each)}" for each in question.options))
    if question.url is not None:
        words.append(question.url)
    return "\n\n".join(words)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def usage_of(usage: Usage, before: Usage | None) -> Json:
    """Return a response's token usage, which is the difference between two cumulative counts."""
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


@dataclass(slots=True)
class Item:
    """An open output item."""

    data: Json
    index: int
    step: str
    pieces: list[str] = field(default_factory=list[str])

    @property
    def at(self) -> Json:
        """Event fields that identify the item."""
        return {"item_id": self.data["id"], "output_index": self.index}


class Writer:
    """Writer for response events that also collects the output items."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        """Initialize the writer with an event callback."""
        self._send = send
        self._number = 0
        self._index = -1
        self._done: list[Item] = []

    def emit(self, type: str, **fields: Any) -> None:
        """Emit an event."""
        self._send({"type": type, "sequence_number": self._number, **fields})
        self._number += 1

    @property
    def output(self) -> list[Json]:
        """Completed items in output order."""
        return [each.data for each in sorted(self._done, key=lambda each: each.index)]

    def forget(self, step: str) -> None:
        """Remove the content of a discarded step from the output. Its events have already been sent."""
        said = ("message", "reasoning")
        self._done = [each for each in self._done if each.step != step or each.data["type"] not in said]

    def add(self, data: Json, step: str = "") -> Item:
        """Start an item."""
        self._index += 1
        self.emit("response.output_item.added", output_index=self._index, item=data)
        return Item(data, self._index, step)

    def done(self, item: Item, status: str | None = None, *, kept: bool = True) -> None:
        """Complete an item."""
        if status is not None:
            item.data = {**item.data, "status": status}
        if kept:
            self._done.append(item)
        self.emit("response.output_item.done", output_index=item.index, item=item.data)

    # -- messages

    def message(self, id: str, step: str = "") -> Item:
        """Start a message item."""
        item = self.add(message_item(id, "in_progress"), step)
        self.emit("response.content_part.added", **item.at, content_index=0, part=text_part(""))
        return item

    def text(self, item: Item, delta: str) -> None:
        """Emit a text delta."""
        item.pieces.append(delta)
        self.emit("response.output_text.delta", **item.at, content_index=0, delta=delta, logprobs=[])

    def text_done(self, item: Item) -> str:
        """Complete a message's text and return it."""
        text = "".join(item.pieces)
        part = text_part(text)
        self.emit("response.output_text.done", **item.at, content_index=0, text=text, logprobs=[])
        self.emit("response.content_part.done", **item.at, content_index=0, part=part)
        item.data = message_item(item.data["id"], "in_progress", part)
        return text

    def annotate(self, item: Item, message: ContentCompleteEvent) -> None:
        """Add citations to a message item, if its text matches the complete message."""
        text = "".join(item.pieces)
        found = [{"type": "url_citation", **each} for each in url_citations(message, text)]
        for index, each in enumerate(found):
            at = {**item.at, "content_index": 0, "annotation_index": index}
            self.emit("response.output_text.annotation.added", **at, annotation=each)
        if found:
            item.data = message_item(item.data["id"], "in_progress", text_part(text, found))

    def say(self, id: str, text: str) -> None:
        """Emit a complete message item."""
        item = self.message(id)
        self.text(item, text)
        self.text_done(item)
        self.done(item, "completed")

    # -- reasoning

    def reasoning(self, id: str, step: str) -> Item:
        """Start a reasoning item."""
        item = self.add(reasoning_item(id, "in_progress"), step)
        part = {"type": "summary_text", "text": ""}
        self.emit("response.reasoning_summary_part.added", **item.at, summary_index=0, part=part)
        return item

    def thought(self, item: Item, delta: str) -> None:
        """Emit a reasoning delta."""
        item.pieces.append(delta)
        self.emit("response.reasoning_summary_text.delta", **item.at, summary_index=0, delta=delta)

    def reasoning_done(self, item: Item) -> None:
        """Complete a reasoning item."""
        text = "".join(item.pieces)
        part = {"type": "summary_text", "text": text}
        self.emit("response.reasoning_summary_text.done", **item.at, summary_index=0, text=text)
        self.emit("response.reasoning_summary_part.done", **item.at, summary_index=0, part=part)
        item.data = reasoning_item(item.data["id"], "in_progress", text)
        self.done(item, "completed")

    # -- calls

    def mcp_call(self, data: Json, arguments: str) -> Item:
        """Start an item for an agent tool call."""
        item = self.add(data)
        self.emit("response.mcp_call.in_progress", **item.at)
        self.emit("response.mcp_call_arguments.delta", **item.at, delta=arguments)
        self.emit("response.mcp_call_arguments.done", **item.at, arguments=arguments)
        item.data = {**data, "arguments": arguments}
        return item

    def mcp_call_done(self, item: Item, data: Json) -> None:
        """Complete an item for an agent tool call."""
        self.emit(f"response.mcp_call.{data['status']}", **item.at)
        item.data = data
        self.done(item)

    def function_call(self, data: Json) -> None:
        """Emit a complete function call item for a client tool."""
        item = self.add({**data, "arguments": "", "status": "in_progress"})
        arguments = data["arguments"]
        self.emit("response.function_call_arguments.delta", **item.at, delta=arguments)
        self.emit("response.function_call_arguments.done", **item.at, arguments=arguments)
        item.data = data
        self.done(item)
