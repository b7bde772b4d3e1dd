"""Response reader of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, cast

from rxloop.errors import ProviderError, ProviderProtocolError
from rxloop.protocol.media import decode_base64
from rxloop.protocol.messages import ImagePart
from rxloop.providers.codecs import JSONReader
from rxloop.providers.codecs.answer_end import normalise_finish_reason, normalise_incomplete
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import object_of, objects, text_of
from rxloop.providers.codecs.responses.conversation import ChainLost
from rxloop.providers.codecs.responses.output_items import (
    CALLS,
    FIELD_OF,
    ITEM_WEIGHT,
    NOT_HERE,
    OTHERS,
    QUIET_EVENTS,
    QUIET_PREFIXES,
    SERVER_TOOLS,
    TYPE_OF,
    OutputItem,
    OutputItems,
    OutputPart,
    PartKind,
    citation_of,
    differs,
    kind_of,
    tell_end,
    tell_start,
)
from rxloop.providers.codecs.tool_calls import dumped
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.vendors.urls import over_chat

_NOT_THERE = (404, 405, 501)


class ResponsesReader(JSONReader):
    """Response reader.

    Complete text is compared with streamed fragments. Only missing text is appended.
    """

    def __init__(self, draft: MessageDraft, key: str, forget: Callable[[], None]) -> None:
        """Create the reader.

        Args:
            draft: The message to fill.
            key: Key of the message pieces in `provider_state`.
            forget: Called when the vendor no longer has the previous response.
        """
        super().__init__(draft)
        self.key = key
        self._forget = forget
        self._items = OutputItems(draft)
        self._calls = 0
        self._open: OutputPart | None = None
        """Currently open part."""

    def event(self, event: dict[str, Any]) -> None:
        """Read one stream event."""
        kind = event.get("type")
        if kind == "response.output_text.delta":
            # Fast path for nearly every event.
            part, text = self._open, event.get("delta")
            if (
                part is not None
                and part.kind == "output_text"
                and text.__class__ is str
                and event.get("item_id") == part.item.id
                and event.get("content_index") == part.index
            ):
                part.got.write(cast("str", text))
                self.draft.write(cast("str", text))
                return
        read = _EVENTS.get(kind) if kind.__class__ is str else None
        if read is not None:
            read(self, event)
        elif kind.__class__ is not str:
            if event.get("error"):
                raise from_error_object(event, self.draft.where)
            self.pass_over("an event without a type")
        elif kind not in QUIET_EVENTS and not cast("str", kind).startswith(QUIET_PREFIXES):
            self.pass_over(f"events of the type {cast('str', kind)[:100]!r}")

    def answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if not answer.get("error") and not isinstance(answer.get("output"), list) and "status" not in answer:
            raise ProviderProtocolError(f"{self.draft.where} sent neither output nor status")
        self._response(answer)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return the error for a response with an HTTP error status."""
        error = super().refusal(status, headers, body)
        if status in (400, 404) and b"previous_response" in body and b"not" in body:
            self._forget()
            return ChainLost(str(error), status=status, retry_after=0, request_id=error.request_id)
        if status in _NOT_THERE and (chat := over_chat(self.draft.where)):
            error.args = (f"{error.args[0]} (use {chat!r} for an endpoint with chat completions only)",)
        return error

    def item_added(self, event: dict[str, Any]) -> None:
        """Start a new item."""
        fields = object_of(event.get("item"))
        if self._items.known(text_of(fields.get("id")), text_of(fields.get("type"))):
            return
        item = self._items.new(text_of(fields.get("type")), text_of(fields.get("id")), event.get("output_index"))
        self._note(item, fields)
        if item.type in CALLS:
            self._begin_call(item)
        elif item.type in SERVER_TOOLS:
            tell_start(self.draft, item)

    def item_done(self, event: dict[str, Any]) -> None:
        """Read a complete item."""
        fields = object_of(event.get("item"))
        if kind := text_of(fields.get("type")):
            self._finish(self._items.find(event, kind, text_of(fields.get("id"))), fields)

    def text_delta(self, event: dict[str, Any], kind: PartKind) -> None:
        """Append a text fragment."""
        text = event.get("delta")
        if isinstance(text, str) and text:
            self._write(self._part(event, kind), text)

    def text_done(self, event: dict[str, Any], kind: PartKind) -> None:
        """Read a complete part."""
        text = event.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str) and text:
            self._settle(self._part(event, kind), text)

    def call_delta(self, event: dict[str, Any], type: str) -> None:
        """Read a fragment of a tool's input."""
        text = event.get("delta")
        if isinstance(text, str) and text:
            self._write_call(self._items.find(event, type), text)

    def call_done(self, event: dict[str, Any], type: str) -> None:
        """Complete a tool's input."""
        item = self._items.find(event, type)
        if name := text_of(event.get("name")):
            item.fields.setdefault("name", name)
        self._settle_call(item, text_of(event.get(CALLS[type])))

    def annotation(self, event: dict[str, Any]) -> None:
        """Read an annotation of a text."""
        annotation = object_of(event.get("annotation"))
        if annotation:
            self.draft.other += len(dumped(annotation)) + ITEM_WEIGHT
            self._part(event, "output_text").annotations.append(annotation)

    def end(self, event: dict[str, Any]) -> None:
        """Finish the response."""
        response = object_of(event.get("response"))
        self._response({"status": text_of(event.get("type")).removeprefix("response."), **response})
        self.done = True

    def error(self, event: dict[str, Any]) -> None:
        """Raise a reported error."""
        raise from_error_object(event, self.draft.where)

    def _response(self, response: dict[str, Any]) -> None:
        """Read a complete response after or without streaming."""
        status, where = response.get("status"), self.draft.where
        self.draft.count(response.get("usage"))
        if response.get("error") or status == "failed":
            raise from_error_object(response.get("error") or {"message": "the answer failed"}, where)
        if status in ("queued", "in_progress"):
            raise ProviderProtocolError(
                f"{where} returned status {status!r} instead of an answer; "
                "a background response must be streamed (stream=True)"
            )
        if status == "cancelled":
            raise from_error_object({"message": "the vendor cancelled the answer"}, where)
        for item, fields in self._items.matched(objects(response.get("output"))):
            self._finish(item, fields)
        for item in self._items.all:
            self._finish(item, None)
            self._keep(item)
        stored = text_of(response.get("id")) if response.get("store") is True else ""
        if stored:
            self.draft.raw({"response": stored})
        reason = text_of(object_of(response.get("incomplete_details")).get("reason"))
        if status == "incomplete" or reason:
            self.draft.finish(normalise_incomplete(reason), reason or "incomplete")
        elif status:
            self.draft.finish(normalise_finish_reason(text_of(status)), text_of(status))

    def _part(self, event: dict[str, Any], kind: PartKind) -> OutputPart:
        index = event.get("summary_index" if kind == "summary_text" else "content_index")
        return self._part_of(self._items.find(event, TYPE_OF[kind]), kind, int(index) if isinstance(index, int) else 0)

    def _part_of(self, item: OutputItem, kind: PartKind, index: int) -> OutputPart:
        count = len(item.parts)
        part = item.part(kind, index)
        self.draft.other += ITEM_WEIGHT * (len(item.parts) - count)
        return part

    def _write(self, part: OutputPart, text: str) -> None:
        draft = self.draft
        draft.refused = draft.refused or part.kind == "refusal"
        shown = part.item.shows(part)
        if shown and self._open is not part:
            self._begin(part)
        part.got.write(text)
        if not shown:
            draft.other += len(text)
        elif part.item.type == "reasoning":
            draft.think(text)
        else:
            draft.write(text)

    def _begin(self, part: OutputPart) -> None:
        """Begin or continue a message piece."""
        draft = self.draft
        if part.item.type == "reasoning":
            extra = draft.begin_reasoning()
        else:
            extra = draft.begin_text()
            if not part.got.tell():
                part.start = draft.text.written
        draft.other += ITEM_WEIGHT
        extra["item"], extra["part"], self._open = part.item.number, part.name, part

    def _settle(self, part: OutputPart, text: str) -> None:
        """Append missing text from the complete part."""
        if part.settled or not text:
            return
        part.settled = True
        got = part.got.getvalue()
        if text.startswith(got):
            if len(text) > len(got):
                self._write(part, text[len(got) :])
        elif text.strip() != got.strip():
            self.pass_over("a text that differs from its fragments")

    def _begin_call(self, item: OutputItem) -> None:
        """Begin a call once its name is known."""
        name = text_of(item.fields.get("name"))
        if item.call is not None or not name:
            return
        item.call, self._calls = self._calls, self._calls + 1
        extra = self.draft.begin_call(item.call)
        extra["item"] = item.number
        self._open = None
        custom = item.type == "custom_tool_call"
        if custom:
            extra["custom"] = True
        first, item.written = item.written.getvalue(), StringIO()
        call_id = text_of(item.fields.get("call_id")) or item.id
        self.draft.call(item.call, id=call_id, name=name, fragment='{"input":"' if custom else "")
        if first:
            self._write_call(item, first)

    def _write_call(self, item: OutputItem, text: str) -> None:
        if item.call is None:
            self._begin_call(item)
        item.written.write(text)
        if item.call is None:
            self.draft.other += len(text)
            return
        self.draft.call(item.call, fragment=json.dumps(text)[1:-1] if item.type == "custom_tool_call" else text)

    def _settle_call(self, item: OutputItem, text: str) -> None:
        """Append missing input from the complete call."""
        got = item.written.getvalue()
        if text.startswith(got):
            if len(text) > len(got):
                self._write_call(item, text[len(got) :])
        elif text and differs(got, text):
            # The call would be executed with arguments that the model did not write.
            raise ProviderProtocolError(f"{self.draft.where} sent arguments that contradict their fragments")

    def _finish(self, item: OutputItem, fields: dict[str, Any] | None) -> None:
        """Finish an item, possibly without complete fields."""
        # Prefer the item's own event, because encrypted content in the complete response may differ.
        first = item.number not in self._items.finished
        if fields is not None and first:
            self._note(item, fields)
        said = fields or item.fields
        if item.type in ("message", "reasoning"):
            self._contents(item, said)
        elif item.type in CALLS:
            self._begin_call(item)
            self._settle_call(item, text_of(said.get(CALLS[item.type])))
            if said.get("status") == "incomplete":
                self.draft.finish(normalise_incomplete("call"), "incomplete call")
        if not first:
            return
        self._items.finished.add(item.number)
        if item.type == "custom_tool_call" and item.call is not None:
            self.draft.call(item.call, fragment='"}')
        elif item.type == "message":
            self._cite(item)
        elif item.type in SERVER_TOOLS:
            tell_start(self.draft, item)
            tell_end(self.draft, item)
        elif item.type not in OTHERS and item.type not in NOT_HERE and item.type not in (*CALLS, "reasoning"):
            self.pass_over(f"an item of the type {item.type[:100]!r}")
        if item.type in NOT_HERE and item.type != "shell_call":
            self.pass_over(f"an item of the type {item.type!r}, which needs an answer from a program")

    def _note(self, item: OutputItem, fields: dict[str, Any]) -> None:
        if item.type == "image_generation_call" and isinstance(fields.get("result"), str):
            fields = {**fields, "result": self._image(item, fields)}
        began, item.fields = item.fields, fields
        if item.type in CALLS and not fields.get("name") and "name" in began:
            item.fields = {**fields, "name": began["name"]}
        weight = 0 if item.type == "message" or item.type in CALLS else len(dumped(item.fields))
        self.draft.other += weight - item.weight
        item.weight = weight

    def _image(self, item: OutputItem, fields: dict[str, Any]) -> str:
        """Move a valid image from an item into the message, and return the remaining result."""
        result = fields["result"]
        if item.written.tell() or not result:
            return "" if item.written.tell() else result
        try:
            data = decode_base64(result)
        except ValueError:
            return result
        item.written.write("image")
        form = text_of(fields.get("output_format")) or "png"
        self.draft.file(ImagePart(data=data, media_type=f"image/{form[:50]}"))["item"] = item.number
        self._open = None
        return ""

    def _contents(self, item: OutputItem, fields: dict[str, Any]) -> None:
        """Read complete parts."""
        for field in ("summary", "content"):
            for index, part in enumerate(objects(fields.get(field))):
                kind = kind_of(part, item.type)
                if kind is None or FIELD_OF.get(kind, "content") != field:
                    self.pass_over("a part that its item cannot contain")
                    continue
                text = text_of(part.get("refusal" if kind == "refusal" else "text"))
                annotations = objects(part.get("annotations"))
                if text or annotations:
                    found = self._part_of(item, kind, index)
                    found.annotations = annotations or found.annotations
                    self._settle(found, text)

    def _cite(self, item: OutputItem) -> None:
        for part in item.parts.values():
            for annotation in part.annotations:
                self.draft.cite(citation_of(annotation, part.start))

    def _keep(self, item: OutputItem) -> None:
        head = item.head()
        self.draft.other -= item.weight
        self.draft.raw(head)


def _text(kind: PartKind) -> dict[str, Callable[[ResponsesReader, dict[str, Any]], None]]:
    name = {"summary_text": "reasoning_summary_text"}.get(kind, kind)
    return {
        f"response.{name}.delta": lambda reader, event: reader.text_delta(event, kind),
        f"response.{name}.done": lambda reader, event: reader.text_done(event, kind),
    }


def _call(name: str, type: str) -> dict[str, Callable[[ResponsesReader, dict[str, Any]], None]]:
    return {
        f"response.{name}.delta": lambda reader, event: reader.call_delta(event, type),
        f"response.{name}.done": lambda reader, event: reader.call_done(event, type),
    }


_EVENTS: dict[Any, Callable[[ResponsesReader, dict[str, Any]], None]] = {
    "response.output_item.added": ResponsesReader.item_added,
    "response.output_item.done": ResponsesReader.item_done,
    **_text("output_text"),
    **_text("refusal"),
    **_text("summary_text"),
    **_text("reasoning_text"),
    **_call("function_call_arguments", "function_call"),
    **_call("custom_tool_call_input", "custom_tool_call"),
    "response.output_text.annotation.added": ResponsesReader.annotation,
    "response.completed": ResponsesReader.end,
    "response.done": ResponsesReader.end,
    "response.incomplete": ResponsesReader.end,
    "response.failed": ResponsesReader.end,
    "response.cancelled": ResponsesReader.end,
    "error": ResponsesReader.error,
}
