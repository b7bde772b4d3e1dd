"""JSON items and numbered events of a response."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent
from rxloop.protocol.links import is_page
from rxloop.protocol.messages import PendingInput, ToolCall, Usage

_ID = re.compile(r"([0-9a-f-]{36})(?:\.([1-9][0-9]{0,5}))?")

_TURN_SUFFIX = ":response:"


class ResponseId(NamedTuple):
    """Id of a response.

    A run has several responses if it pauses. Each starts with the run or an answer, and ends when the run is idle.
    """

    task_id: str
    turn: int

    def __str__(self) -> str:
        return self.task_id if self.turn == 1 else f"{self.task_id}.{self.turn}"


def read_response_id(value: str) -> ResponseId | None:
    """Parse a response id, returning None if it is invalid."""
    match = _ID.fullmatch(value)
    if match is None or match[2] == "1":
        return None
    return ResponseId(match[1], int(match[2] or 1))


def make_approval_id(task_id: str, input_id: str) -> str:
    """Return a question's `approval_request_id`."""
    return f"mcpr_{task_id}:{input_id}"


def parse_run_id(id: str) -> str:
    """Return the run id contained in an approval id or call id."""
    return id.removeprefix("mcpr_").partition(":")[0]


def make_item_id(id: str, turn: int) -> str:
    """Return a unique item id across a run's responses."""
    return id if turn == 1 else f"{id}{_TURN_SUFFIX}{turn}"


def parse_question_id(id: str) -> str:
    """Remove the response number from an item id."""
    return id.partition(_TURN_SUFFIX)[0]


Json = dict[str, Any]

LABEL = "rxloop"
"""Server label for the agent's tools, shown to clients as MCP tools."""


def make_text_part(text: str, annotations: Sequence[Json] = ()) -> Json:
    """Create a text part with optional citations."""
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def make_url_citations(message: ContentCompleteEvent, text: str, offset: int = 0) -> list[Json]:
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
        if is_page(each.url)
    ]


def make_message_item(id: str, status: str, *parts: Json) -> Json:
    """Create an assistant message item."""
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(parts)}


def make_reasoning_item(id: str, status: str, *texts: str) -> Json:
    """Create a reasoning item."""
    summary = [{"type": "summary_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": id, "summary": summary, "status": status}


def make_mcp_call(id: str, name: str, approval: str | None) -> Json:
    """Create an item for a starting tool call."""
    call = {"type": "mcp_call", "id": id, "server_label": LABEL, "name": name, "arguments": "", "status": "in_progress"}
    return {**call, "approval_request_id": approval, "output": None, "error": None}


def add_result(item: Json, result: ToolCompleteEvent) -> Json:
    """Add the result to a tool call item."""
    if result.success:
        return {**item, "status": "completed", "output": result.content}
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.content}]}
    return {**item, "status": "failed", "error": error}


def make_approval_request(id: str, question: PendingInput) -> Json:
    """Create an approval request item."""
    call = question.call
    name, arguments = ("confirm", "{}") if call is None else (call.name, encode_arguments(call))
    return {"type": "mcp_approval_request", "id": id, "server_label": LABEL, "name": name, "arguments": arguments}


def make_function_call(call_id: str, question: PendingInput) -> Json:
    """Create a function call item for a client tool."""
    call = question.call
    name, arguments = ("", "{}") if call is None else (call.name, _dump(call.arguments))
    item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
    return {**item, "name": name, "arguments": arguments}


def encode_arguments(call: ToolCall) -> str:
    """Return a call's arguments as JSON, preferably as the model wrote them."""
    return call.raw if call.raw is not None else orjson.dumps(call.arguments).decode()


def format_question(question: PendingInput) -> str:
    """Format a question as text with options and URL."""
    paragraphs = [question.prompt]
    if question.options:
        paragraphs.append("\n".join(f"- {each if isinstance(each, str) else _dump(each)}" for each in question.options))
    if question.url is not None:
        paragraphs.append(question.url)
    return "\n\n".join(paragraphs)


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def subtract_usage(usage: Usage, before: Usage | None) -> Json:
    """Return a response's token usage, which is the difference between two cumulative counts."""
    before = before or Usage()
    read, written = usage.input_tokens - before.input_tokens, usage.output_tokens - before.output_tokens
    cached, thought = usage.cached_tokens - before.cached_tokens, usage.reasoning_tokens - before.reasoning_tokens
    cache_written = usage.cache_write_tokens - before.cache_write_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_written},
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
    deltas: list[str] = field(default_factory=list[str])

    @property
    def location(self) -> Json:
        """Event fields that identify the item."""
        return {"item_id": self.data["id"], "output_index": self.index}


class Writer:
    """Writer for response events that also collects the output items."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        """Initialize the writer with an event callback."""
        self._send = send
        self._number = 0
        self._index = -1
        self._completed: list[Item] = []

    def emit(self, type: str, **fields: Any) -> None:
        """Emit an event."""
        self._send({"type": type, "sequence_number": self._number, **fields})
        self._number += 1

    @property
    def output(self) -> list[Json]:
        """Completed items in output order."""
        return [each.data for each in sorted(self._completed, key=lambda each: each.index)]

    def drop_step(self, step: str) -> None:
        """Remove the content of a discarded step from the output. Its events have already been sent."""
        types = ("message", "reasoning")
        self._completed = [each for each in self._completed if each.step != step or each.data["type"] not in types]

    def start(self, data: Json, step: str = "") -> Item:
        """Start an item."""
        self._index += 1
        self.emit("response.output_item.added", output_index=self._index, item=data)
        return Item(data, self._index, step)

    def complete(self, item: Item, status: str | None = None, *, keep: bool = True) -> None:
        """Complete an item."""
        if status is not None:
            item.data = {**item.data, "status": status}
        if keep:
            self._completed.append(item)
        self.emit("response.output_item.done", output_index=item.index, item=item.data)

    # -- messages

    def start_message(self, id: str, step: str = "") -> Item:
        """Start a message item."""
        item = self.start(make_message_item(id, "in_progress"), step)
        self.emit("response.content_part.added", **item.location, content_index=0, part=make_text_part(""))
        return item

    def add_text(self, item: Item, delta: str) -> None:
        """Emit a text delta."""
        item.deltas.append(delta)
        self.emit("response.output_text.delta", **item.location, content_index=0, delta=delta, logprobs=[])

    def complete_text(self, item: Item) -> str:
        """Complete a message's text and return it."""
        text = "".join(item.deltas)
        part = make_text_part(text)
        self.emit("response.output_text.done", **item.location, content_index=0, text=text, logprobs=[])
        self.emit("response.content_part.done", **item.location, content_index=0, part=part)
        item.data = make_message_item(item.data["id"], "in_progress", part)
        return text

    def annotate(self, item: Item, message: ContentCompleteEvent) -> None:
        """Add citations to a message item, if its text matches the complete message."""
        text = "".join(item.deltas)
        citations = [{"type": "url_citation", **each} for each in make_url_citations(message, text)]
        for index, each in enumerate(citations):
            place = {**item.location, "content_index": 0, "annotation_index": index}
            self.emit("response.output_text.annotation.added", **place, annotation=each)
        if citations:
            item.data = make_message_item(item.data["id"], "in_progress", make_text_part(text, citations))

    def add_message(self, id: str, text: str) -> None:
        """Emit a complete message item."""
        item = self.start_message(id)
        self.add_text(item, text)
        self.complete_text(item)
        self.complete(item, "completed")

    # -- reasoning

    def start_reasoning(self, id: str, step: str) -> Item:
        """Start a reasoning item."""
        item = self.start(make_reasoning_item(id, "in_progress"), step)
        part = {"type": "summary_text", "text": ""}
        self.emit("response.reasoning_summary_part.added", **item.location, summary_index=0, part=part)
        return item

    def add_thought(self, item: Item, delta: str) -> None:
        """Emit a reasoning delta."""
        item.deltas.append(delta)
        self.emit("response.reasoning_summary_text.delta", **item.location, summary_index=0, delta=delta)

    def complete_reasoning(self, item: Item) -> None:
        """Complete a reasoning item."""
        text = "".join(item.deltas)
        part = {"type": "summary_text", "text": text}
        self.emit("response.reasoning_summary_text.done", **item.location, summary_index=0, text=text)
        self.emit("response.reasoning_summary_part.done", **item.location, summary_index=0, part=part)
        item.data = make_reasoning_item(item.data["id"], "in_progress", text)
        self.complete(item, "completed")

    # -- calls

    def start_mcp_call(self, data: Json, arguments: str) -> Item:
        """Start an item for an agent tool call."""
        item = self.start(data)
        self.emit("response.mcp_call.in_progress", **item.location)
        self.emit("response.mcp_call_arguments.delta", **item.location, delta=arguments)
        self.emit("response.mcp_call_arguments.done", **item.location, arguments=arguments)
        item.data = {**data, "arguments": arguments}
        return item

    def complete_mcp_call(self, item: Item, data: Json) -> None:
        """Complete an item for an agent tool call."""
        self.emit(f"response.mcp_call.{data['status']}", **item.location)
        item.data = data
        self.complete(item)

    def add_function_call(self, data: Json) -> None:
        """Emit a complete function call item for a client tool."""
        item = self.start({**data, "arguments": "", "status": "in_progress"})
        arguments = data["arguments"]
        self.emit("response.function_call_arguments.delta", **item.location, delta=arguments)
        self.emit("response.function_call_arguments.done", **item.location, arguments=arguments)
        item.data = data
        self.complete(item)
