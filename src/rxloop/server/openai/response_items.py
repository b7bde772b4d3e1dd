"""Items and ids of a response as JSON, and the numbered events that begin and end each item once."""

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
    """A run from its beginning, or from an answer to its questions, until it comes to rest: one response."""

    task_id: str
    turn: int

    def __str__(self) -> str:
        return self.task_id if self.turn == 1 else f"{self.task_id}.{self.turn}"


def read_response_id(value: str) -> ResponseId | None:
    """Read the id of a response; None for what is none."""
    found = _ID.fullmatch(value)
    if found is None or found[2] == "1":
        return None
    return ResponseId(found[1], int(found[2] or 1))


def approval_id(task_id: str, input_id: str) -> str:
    """The id of a question, for `approval_request_id`."""
    return f"mcpr_{task_id}:{input_id}"


def run_of(id: str) -> str:
    """The run that an id of `approval_id`, or of the slot of a call, names."""
    return id.removeprefix("mcpr_").partition(":")[0]


def later(id: str, turn: int) -> str:
    """The id of an item that several responses of a run may have."""
    return id if turn == 1 else f"{id}{_LATER}{turn}"


def question_of(id: str) -> str:
    """The question that an id names, whichever response it was put in."""
    return id.partition(_LATER)[0]


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


def message_item(id: str, status: str, *parts: Json) -> Json:
    """A message of the agent."""
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(parts)}


def reasoning_item(id: str, status: str, *texts: str) -> Json:
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


@dataclass(slots=True)
class Item:
    """An item that has begun and has not ended."""

    data: Json
    index: int
    step: str
    pieces: list[str] = field(default_factory=list[str])

    @property
    def at(self) -> Json:
        """What an event says of the item that it is of."""
        return {"item_id": self.data["id"], "output_index": self.index}


class Writer:
    """Writes the events of one response, and keeps its items."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        """Give each event to `send`."""
        self._send = send
        self._number = 0
        self._index = -1
        self._done: list[Item] = []

    def emit(self, type: str, **fields: Any) -> None:
        """Write an event."""
        self._send({"type": type, "sequence_number": self._number, **fields})
        self._number += 1

    @property
    def output(self) -> list[Json]:
        """The items that are complete."""
        return [each.data for each in sorted(self._done, key=lambda each: each.index)]

    def forget(self, step: str) -> None:
        """Take back what a try of a step has said: its events are out, and the response is without it."""
        said = ("message", "reasoning")
        self._done = [each for each in self._done if each.step != step or each.data["type"] not in said]

    def add(self, data: Json, step: str = "") -> Item:
        """Begin an item."""
        self._index += 1
        self.emit("response.output_item.added", output_index=self._index, item=data)
        return Item(data, self._index, step)

    def done(self, item: Item, status: str | None = None, *, kept: bool = True) -> None:
        """End an item."""
        if status is not None:
            item.data = {**item.data, "status": status}
        if kept:
            self._done.append(item)
        self.emit("response.output_item.done", output_index=item.index, item=item.data)

    # -- messages

    def message(self, id: str, step: str = "") -> Item:
        """Begin a message."""
        item = self.add(message_item(id, "in_progress"), step)
        self.emit("response.content_part.added", **item.at, content_index=0, part=text_part(""))
        return item

    def text(self, item: Item, delta: str) -> None:
        """Write a piece of a message."""
        item.pieces.append(delta)
        self.emit("response.output_text.delta", **item.at, content_index=0, delta=delta, logprobs=[])

    def text_done(self, item: Item) -> str:
        """End the text of a message, and give it."""
        text = "".join(item.pieces)
        part = text_part(text)
        self.emit("response.output_text.done", **item.at, content_index=0, text=text, logprobs=[])
        self.emit("response.content_part.done", **item.at, content_index=0, part=part)
        item.data = message_item(item.data["id"], "in_progress", part)
        return text

    def annotate(self, item: Item, message: ContentCompleteEvent) -> None:
        """Write what the text of a message rests on, if the message is that text."""
        text = "".join(item.pieces)
        found = [{"type": "url_citation", **each} for each in url_citations(message, text)]
        for index, each in enumerate(found):
            at = {**item.at, "content_index": 0, "annotation_index": index}
            self.emit("response.output_text.annotation.added", **at, annotation=each)
        if found:
            item.data = message_item(item.data["id"], "in_progress", text_part(text, found))

    def say(self, id: str, text: str) -> None:
        """Write a whole message."""
        item = self.message(id)
        self.text(item, text)
        self.text_done(item)
        self.done(item, "completed")

    # -- reasoning

    def reasoning(self, id: str, step: str) -> Item:
        """Begin reasoning."""
        item = self.add(reasoning_item(id, "in_progress"), step)
        part = {"type": "summary_text", "text": ""}
        self.emit("response.reasoning_summary_part.added", **item.at, summary_index=0, part=part)
        return item

    def thought(self, item: Item, delta: str) -> None:
        """Write a piece of reasoning."""
        item.pieces.append(delta)
        self.emit("response.reasoning_summary_text.delta", **item.at, summary_index=0, delta=delta)

    def reasoning_done(self, item: Item) -> None:
        """End reasoning."""
        text = "".join(item.pieces)
        part = {"type": "summary_text", "text": text}
        self.emit("response.reasoning_summary_text.done", **item.at, summary_index=0, text=text)
        self.emit("response.reasoning_summary_part.done", **item.at, summary_index=0, part=part)
        item.data = reasoning_item(item.data["id"], "in_progress", text)
        self.done(item, "completed")

    # -- calls

    def mcp_call(self, data: Json, arguments: str) -> Item:
        """Begin a call of a tool of the agent."""
        item = self.add(data)
        self.emit("response.mcp_call.in_progress", **item.at)
        self.emit("response.mcp_call_arguments.delta", **item.at, delta=arguments)
        self.emit("response.mcp_call_arguments.done", **item.at, arguments=arguments)
        item.data = {**data, "arguments": arguments}
        return item

    def mcp_call_done(self, item: Item, data: Json) -> None:
        """End a call of a tool of the agent."""
        self.emit(f"response.mcp_call.{data['status']}", **item.at)
        item.data = data
        self.done(item)

    def function_call(self, data: Json) -> None:
        """Write a call that the client is to carry out."""
        item = self.add({**data, "arguments": "", "status": "in_progress"})
        arguments = data["arguments"]
        self.emit("response.function_call_arguments.delta", **item.at, delta=arguments)
        self.emit("response.function_call_arguments.done", **item.at, arguments=arguments)
        item.data = data
        self.done(item)
