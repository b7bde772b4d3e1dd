"""Numbered events of the Responses API; each item begins once and ends once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rxloop.protocol.events import ContentCompleteEvent
from rxloop.server.openai import response_items as items
from rxloop.server.openai.response_items import Json


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
        item = self.add(items.message(id, "in_progress"), step)
        self.emit("response.content_part.added", **item.at, content_index=0, part=items.text_part(""))
        return item

    def text(self, item: Item, delta: str) -> None:
        """Write a piece of a message."""
        item.pieces.append(delta)
        self.emit("response.output_text.delta", **item.at, content_index=0, delta=delta, logprobs=[])

    def text_done(self, item: Item) -> str:
        """End the text of a message, and give it."""
        text = "".join(item.pieces)
        part = items.text_part(text)
        self.emit("response.output_text.done", **item.at, content_index=0, text=text, logprobs=[])
        self.emit("response.content_part.done", **item.at, content_index=0, part=part)
        item.data = items.message(item.data["id"], "in_progress", part)
        return text

    def annotate(self, item: Item, message: ContentCompleteEvent) -> None:
        """Write what the text of a message rests on, if the message is that text."""
        text = "".join(item.pieces)
        found = [{"type": "url_citation", **each} for each in items.url_citations(message, text)]
        for index, each in enumerate(found):
            at = {**item.at, "content_index": 0, "annotation_index": index}
            self.emit("response.output_text.annotation.added", **at, annotation=each)
        if found:
            item.data = items.message(item.data["id"], "in_progress", items.text_part(text, found))

    def say(self, id: str, text: str) -> None:
        """Write a whole message."""
        item = self.message(id)
        self.text(item, text)
        self.text_done(item)
        self.done(item, "completed")

    # -- reasoning

    def reasoning(self, id: str, step: str) -> Item:
        """Begin reasoning."""
        item = self.add(items.reasoning(id, "in_progress"), step)
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
        item.data = items.reasoning(item.data["id"], "in_progress", text)
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
