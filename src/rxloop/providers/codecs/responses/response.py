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
from rxloop.providers.codecs.fields import as_object, as_text, list_objects
from rxloop.providers.codecs.responses.conversation import ChainLost
from rxloop.providers.codecs.responses.output_items import (
    CALLS,
    ITEM_WEIGHT,
    PARENTS,
    PART_FIELDS,
    QUIET_EVENTS,
    QUIET_PREFIXES,
    RAW_ITEMS,
    SERVER_TOOLS,
    UNSUPPORTED,
    OutputItem,
    OutputItems,
    OutputPart,
    PartKind,
    differs,
    find_part_kind,
    report_end,
    report_start,
    to_citation,
)
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.vendors.urls import over_chat

_UNSUPPORTED_STATUSES = (404, 405, 501)


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

    def read_event(self, event: dict[str, Any]) -> None:
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
                part.received.write(cast("str", text))
                self.draft.write(cast("str", text))
                return
        read = _EVENTS.get(kind) if kind.__class__ is str else None
        if read is not None:
            read(self, event)
        elif kind.__class__ is not str:
            if event.get("error"):
                raise from_error_object(event, self.draft.endpoint)
            self.report_unknown("an event without a type")
        elif kind not in QUIET_EVENTS and not cast("str", kind).startswith(QUIET_PREFIXES):
            self.report_unknown(f"events of the type {cast('str', kind)[:100]!r}")

    def read_answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if not answer.get("error") and not isinstance(answer.get("output"), list) and "status" not in answer:
            raise ProviderProtocolError(f"{self.draft.endpoint} sent neither output nor status")
        self._read_response(answer)

    def make_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return the error for a response with an HTTP error status."""
        error = super().make_error(status, headers, body)
        if status in (400, 404) and b"previous_response" in body and b"not" in body:
            self._forget()
            return ChainLost(str(error), status=status, retry_after=0, request_id=error.request_id)
        if status in _UNSUPPORTED_STATUSES and (chat := over_chat(self.draft.endpoint)):
            error.args = (f"{error.args[0]} (use {chat!r} for an endpoint with chat completions only)",)
        return error

    def read_item_added(self, event: dict[str, Any]) -> None:
        """Start a new item."""
        fields = as_object(event.get("item"))
        if self._items.has_item(as_text(fields.get("id")), as_text(fields.get("type"))):
            return
        item = self._items.begin(as_text(fields.get("type")), as_text(fields.get("id")), event.get("output_index"))
        self._set_fields(item, fields)
        if item.type in CALLS:
            self._begin_call(item)
        elif item.type in SERVER_TOOLS:
            report_start(self.draft, item)

    def read_item_done(self, event: dict[str, Any]) -> None:
        """Read a complete item."""
        fields = as_object(event.get("item"))
        if kind := as_text(fields.get("type")):
            self._finish(self._items.find(event, kind, as_text(fields.get("id"))), fields)

    def read_text_delta(self, event: dict[str, Any], kind: PartKind) -> None:
        """Append a text fragment."""
        text = event.get("delta")
        if isinstance(text, str) and text:
            self._write(self._find_part(event, kind), text)

    def read_text_done(self, event: dict[str, Any], kind: PartKind) -> None:
        """Read a complete part."""
        text = event.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str) and text:
            self._complete_part(self._find_part(event, kind), text)

    def read_call_delta(self, event: dict[str, Any], type: str) -> None:
        """Read a fragment of a tool's input."""
        text = event.get("delta")
        if isinstance(text, str) and text:
            self._write_call(self._items.find(event, type), text)

    def read_call_done(self, event: dict[str, Any], type: str) -> None:
        """Complete a tool's input."""
        item = self._items.find(event, type)
        if name := as_text(event.get("name")):
            item.fields.setdefault("name", name)
        self._complete_call(item, as_text(event.get(CALLS[type])))

    def read_annotation(self, event: dict[str, Any]) -> None:
        """Read a text annotation."""
        annotation = as_object(event.get("annotation"))
        if annotation:
            self.draft.other += len(encode_json(annotation)) + ITEM_WEIGHT
            self._find_part(event, "output_text").annotations.append(annotation)

    def read_end(self, event: dict[str, Any]) -> None:
        """Finish the response."""
        response = as_object(event.get("response"))
        self._read_response({"status": as_text(event.get("type")).removeprefix("response."), **response})
        self.done = True

    def read_error(self, event: dict[str, Any]) -> None:
        """Raise a reported error."""
        raise from_error_object(event, self.draft.endpoint)

    def _read_response(self, response: dict[str, Any]) -> None:
        """Read a complete response after or without streaming."""
        status, endpoint = response.get("status"), self.draft.endpoint
        self.draft.origin.identify(response.get("id"), response.get("model"))
        self.draft.count(response.get("usage"))
        if response.get("error") or status == "failed":
            raise from_error_object(response.get("error") or {"message": "the answer failed"}, endpoint)
        if status in ("queued", "in_progress"):
            raise ProviderProtocolError(
                f"{endpoint} returned status {status!r} instead of an answer; "
                "a background response must be streamed (stream=True)"
            )
        if status == "cancelled":
            raise from_error_object({"message": "the vendor cancelled the answer"}, endpoint)
        for item, fields in self._items.match(list_objects(response.get("output"))):
            self._finish(item, fields)
        for item in self._items.all:
            self._finish(item, None)
            self._store_item(item)
        stored = as_text(response.get("id")) if response.get("store") is True else ""
        if stored:
            self.draft.raw({"response": stored})
        reason = as_text(as_object(response.get("incomplete_details")).get("reason"))
        if status == "incomplete" or reason:
            self.draft.finish(normalise_incomplete(reason), reason or "incomplete")
        elif status:
            self.draft.finish(normalise_finish_reason(as_text(status)), as_text(status))

    def _find_part(self, event: dict[str, Any], kind: PartKind) -> OutputPart:
        index = event.get("summary_index" if kind == "summary_text" else "content_index")
        return self._get_part(self._items.find(event, PARENTS[kind]), kind, int(index) if isinstance(index, int) else 0)

    def _get_part(self, item: OutputItem, kind: PartKind, index: int) -> OutputPart:
        count = len(item.parts)
        part = item.part(kind, index)
        self.draft.other += ITEM_WEIGHT * (len(item.parts) - count)
        return part

    def _write(self, part: OutputPart, text: str) -> None:
        draft = self.draft
        draft.refused = draft.refused or part.kind == "refusal"
        is_shown = part.item.shows(part)
        if is_shown and self._open is not part:
            self._begin_piece(part)
        part.received.write(text)
        if not is_shown:
            draft.other += len(text)
        elif part.item.type == "reasoning":
            draft.think(text)
        else:
            draft.write(text)

    def _begin_piece(self, part: OutputPart) -> None:
        """Begin or continue a message piece."""
        draft = self.draft
        if part.item.type == "reasoning":
            extra = draft.begin_reasoning()
        else:
            extra = draft.begin_text()
            if not part.received.tell():
                part.start = draft.text.content_length
        draft.other += ITEM_WEIGHT
        extra["item"], extra["part"], self._open = part.item.number, part.name, part

    def _complete_part(self, part: OutputPart, text: str) -> None:
        """Append missing text from the complete part."""
        if part.is_complete or not text:
            return
        part.is_complete = True
        received = part.received.getvalue()
        if text.startswith(received):
            if len(text) > len(received):
                self._write(part, text[len(received) :])
        elif text.strip() != received.strip():
            self.report_unknown("a text that differs from its fragments")

    def _begin_call(self, item: OutputItem) -> None:
        """Begin a call once its name is known."""
        name = as_text(item.fields.get("name"))
        if item.call is not None or not name:
            return
        item.call, self._calls = self._calls, self._calls + 1
        extra = self.draft.begin_call(item.call)
        extra["item"] = item.number
        self._open = None
        custom = item.type == "custom_tool_call"
        if custom:
            extra["custom"] = True
        first, item.input = item.input.getvalue(), StringIO()
        call_id = as_text(item.fields.get("call_id")) or item.id
        self.draft.call(item.call, id=call_id, name=name, fragment='{"input":"' if custom else "")
        if first:
            self._write_call(item, first)

    def _write_call(self, item: OutputItem, text: str) -> None:
        if item.call is None:
            self._begin_call(item)
        item.input.write(text)
        if item.call is None:
            self.draft.other += len(text)
            return
        self.draft.call(item.call, fragment=json.dumps(text)[1:-1] if item.type == "custom_tool_call" else text)

    def _complete_call(self, item: OutputItem, text: str) -> None:
        """Append missing input from the complete call."""
        received = item.input.getvalue()
        if text.startswith(received):
            if len(text) > len(received):
                self._write_call(item, text[len(received) :])
        elif text and differs(received, text):
            # The call would be executed with arguments that the model did not write.
            raise ProviderProtocolError(f"{self.draft.endpoint} sent arguments that contradict their fragments")

    def _finish(self, item: OutputItem, fields: dict[str, Any] | None) -> None:
        """Finish an item, possibly without complete fields."""
        # Prefer the item's own event, because encrypted content in the complete response may differ.
        is_new = item.number not in self._items.finished
        if fields is not None and is_new:
            self._set_fields(item, fields)
        item_fields = fields or item.fields
        if item.type in ("message", "reasoning"):
            self._read_contents(item, item_fields)
        elif item.type in CALLS:
            self._begin_call(item)
            self._complete_call(item, as_text(item_fields.get(CALLS[item.type])))
            if item_fields.get("status") == "incomplete":
                self.draft.finish(normalise_incomplete("call"), "incomplete call")
        if not is_new:
            return
        self._items.finished.add(item.number)
        if item.type == "custom_tool_call" and item.call is not None:
            self.draft.call(item.call, fragment='"}')
        elif item.type == "message":
            self._cite(item)
        elif item.type in SERVER_TOOLS:
            report_start(self.draft, item)
            report_end(self.draft, item)
        elif item.type not in RAW_ITEMS and item.type not in UNSUPPORTED and item.type not in (*CALLS, "reasoning"):
            self.report_unknown(f"an item of the type {item.type[:100]!r}")
        if item.type in UNSUPPORTED and item.type != "shell_call":
            self.report_unknown(f"an item of the type {item.type!r}, which needs an answer from a program")

    def _set_fields(self, item: OutputItem, fields: dict[str, Any]) -> None:
        if item.type == "image_generation_call" and isinstance(fields.get("result"), str):
            fields = {**fields, "result": self._extract_image(item, fields)}
        previous, item.fields = item.fields, fields
        if item.type in CALLS and not fields.get("name") and "name" in previous:
            item.fields = {**fields, "name": previous["name"]}
        weight = 0 if item.type == "message" or item.type in CALLS else len(encode_json(item.fields))
        self.draft.other += weight - item.weight
        item.weight = weight

    def _extract_image(self, item: OutputItem, fields: dict[str, Any]) -> str:
        """Move a valid image from an item into the message, and return the remaining result."""
        result = fields["result"]
        if item.input.tell() or not result:
            return "" if item.input.tell() else result
        try:
            data = decode_base64(result)
        except ValueError:
            return result
        item.input.write("image")
        form = as_text(fields.get("output_format")) or "png"
        self.draft.file(ImagePart(data=data, media_type=f"image/{form[:50]}"))["item"] = item.number
        self._open = None
        return ""

    def _read_contents(self, item: OutputItem, fields: dict[str, Any]) -> None:
        """Read complete parts."""
        for field in ("summary", "content"):
            for index, part in enumerate(list_objects(fields.get(field))):
                kind = find_part_kind(part, item.type)
                if kind is None or PART_FIELDS.get(kind, "content") != field:
                    self.report_unknown("a part that its item cannot contain")
                    continue
                text = as_text(part.get("refusal" if kind == "refusal" else "text"))
                annotations = list_objects(part.get("annotations"))
                if text or annotations:
                    target = self._get_part(item, kind, index)
                    target.annotations = annotations or target.annotations
                    self._complete_part(target, text)

    def _cite(self, item: OutputItem) -> None:
        for part in item.parts.values():
            for annotation in part.annotations:
                self.draft.cite(to_citation(annotation, part.start))

    def _store_item(self, item: OutputItem) -> None:
        head = item.head()
        self.draft.other -= item.weight
        self.draft.raw(head)


def _text_handlers(kind: PartKind) -> dict[str, Callable[[ResponsesReader, dict[str, Any]], None]]:
    name = {"summary_text": "reasoning_summary_text"}.get(kind, kind)
    return {
        f"response.{name}.delta": lambda reader, event: reader.read_text_delta(event, kind),
        f"response.{name}.done": lambda reader, event: reader.read_text_done(event, kind),
    }


def _call_handlers(name: str, type: str) -> dict[str, Callable[[ResponsesReader, dict[str, Any]], None]]:
    return {
        f"response.{name}.delta": lambda reader, event: reader.read_call_delta(event, type),
        f"response.{name}.done": lambda reader, event: reader.read_call_done(event, type),
    }


_EVENTS: dict[Any, Callable[[ResponsesReader, dict[str, Any]], None]] = {
    "response.output_item.added": ResponsesReader.read_item_added,
    "response.output_item.done": ResponsesReader.read_item_done,
    **_text_handlers("output_text"),
    **_text_handlers("refusal"),
    **_text_handlers("summary_text"),
    **_text_handlers("reasoning_text"),
    **_call_handlers("function_call_arguments", "function_call"),
    **_call_handlers("custom_tool_call_input", "custom_tool_call"),
    "response.output_text.annotation.added": ResponsesReader.read_annotation,
    "response.completed": ResponsesReader.read_end,
    "response.done": ResponsesReader.read_end,
    "response.incomplete": ResponsesReader.read_end,
    "response.failed": ResponsesReader.read_end,
    "response.cancelled": ResponsesReader.read_end,
    "error": ResponsesReader.read_error,
}
