"""Encoding of UI message chunks as server-sent events and as complete messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, cast

import orjson

from rxloop.protocol.events import (
    ContentCompleteEvent,
    CustomEvent,
    Event,
    GapEvent,
    MessageAddedEvent,
    SubtaskEvent,
    ThoughtStreamEvent,
)
from rxloop.protocol.links import is_page
from rxloop.protocol.messages import FilePart, ImagePart

Chunk = dict[str, Any]
"""Chunk data, typed like `UIMessageChunk` in the `ai` package."""

_ENVELOPE = frozenset(to for field in Event.model_fields.values() if (to := field.serialization_alias) is not None)
_FORWARDED_KINDS = frozenset(
    ("stage", "goals-updated", "context-compressed", "thinking-failed", "thinking-noted", "tools-unavailable")
)
"""Other event kinds that are forwarded unchanged."""


def to_data_part(event: Event) -> dict[str, Any] | None:
    """Return the chunk fields of an event, or None if the event is not forwarded."""
    match event:
        case CustomEvent():
            return {"type": f"data-{event.name}", "data": event.data}
        case ThoughtStreamEvent():
            return {"type": "data-thought", "id": event.thought_id, "data": _select_fields(event)}
        case SubtaskEvent():
            return {"type": "data-subtask", "id": event.subtask_id, "data": _select_fields(event)}
        case MessageAddedEvent():
            return {"type": "data-message", "data": _select_fields(event)}
        case GapEvent():
            return {"type": "data-gap", "transient": True, "data": _select_fields(event)}
        case _ if event.kind in _FORWARDED_KINDS:
            return {"type": f"data-{event.kind}", "data": _select_fields(event)}
        case _:
            return None


def _select_fields(event: Event) -> dict[str, Any]:
    """Return public event fields without the envelope."""
    fields: dict[str, Any] = orjson.loads(event.to_json(public=True))
    return {name: value for name, value in fields.items() if name not in _ENVELOPE}


def list_sources_and_files(id: str, message: ContentCompleteEvent) -> Iterator[dict[str, Any]]:
    """Yield source and file chunks for a message.

    Args:
        id: Id of the message text.
        message: Complete message.
    """
    # Each page is listed once.
    pages: dict[str, str | None] = {}
    for citation in message.citations:
        if is_page(citation.url):
            pages.setdefault(citation.url, citation.title)
    for number, (url, title) in enumerate(pages.items()):
        named = {"title": title} if title else {}
        yield {"type": "source-url", "sourceId": f"{id}:source:{number}", "url": url, **named}
    for file in message.files:
        yield to_file_part(file, named=False)


def to_file_part(file: ImagePart | FilePart, *, named: bool = True) -> dict[str, Any]:
    """Convert a file to an AI SDK part. Chunks do not support file names."""
    media_type = file.media_type or ("image/*" if isinstance(file, ImagePart) else "application/octet-stream")
    url = file.url if file.url is not None else f"data:{media_type};base64,{b64encode(file.data or b'').decode()}"
    name = {"filename": file.filename} if named and isinstance(file, FilePart) and file.filename else {}
    return {"type": "file", "mediaType": media_type, "url": url, **name}


DONE = b"data: [DONE]\n\n"
"""Final stream frame."""


def encode(chunk: Chunk) -> bytes:
    """Encode a chunk as a server-sent event."""
    data = orjson.dumps(chunk)
    if b'"__proto__"' in data or b'"prototype"' in data:
        # Clients reject streams containing these keys, even if they come from a tool result.
        data = orjson.dumps(_remove_prototypes(chunk))
    return b"data: %b\n\n" % data


def _remove_prototypes(value: Any) -> Any:
    if isinstance(value, list):
        return [_remove_prototypes(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    values = cast("dict[str, Any]", value)
    cleaned = {key: _remove_prototypes(each) for key, each in values.items() if key != "__proto__"}
    if isinstance(constructor := cleaned.get("constructor"), dict):
        cast("dict[str, Any]", constructor).pop("prototype", None)
    return cleaned


_FINAL_STATES = {
    "tool-input-available": ("input-available", ()),
    "tool-input-error": ("output-error", ("errorText",)),
    "tool-output-available": ("output-available", ("output",)),
    "tool-output-error": ("output-error", ("errorText",)),
    "tool-output-denied": ("output-denied", ()),
}
"""Part state and fields set by each final call chunk."""


def assemble_message(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Assemble a message from a run's chunks."""
    message: dict[str, Any] = {"id": "", "role": "assistant", "parts": []}
    parts: list[dict[str, Any]] = message["parts"]
    streaming: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    data: dict[tuple[str, str | int], dict[str, Any]] = {}
    for chunk in chunks:
        kind: str = chunk["type"]
        if "messageMetadata" in chunk:
            message["metadata"] = _merge(message.get("metadata", {}), chunk["messageMetadata"])
        if kind == "start":
            message["id"] = chunk["messageId"]
        elif kind == "start-step":
            parts.append({"type": "step-start"})
        elif kind in ("text-start", "reasoning-start"):
            named = {"id": chunk["id"]} if kind == "reasoning-start" else {}
            part = {"type": kind.removesuffix("-start"), **named, "text": "", "state": "streaming"}
            streaming[chunk["id"]] = part
            parts.append(part)
        elif kind in ("text-delta", "reasoning-delta"):
            streaming[chunk["id"]]["text"] += chunk["delta"]
        elif kind in ("text-end", "reasoning-end"):
            streaming.pop(chunk["id"])["state"] = "done"
        elif kind in ("file", "source-url"):
            parts.append(dict(chunk))
        elif kind.startswith("tool-"):
            _apply_call(parts, calls, chunk)
        elif kind.startswith("data-") and not chunk.get("transient"):
            key = kind, chunk.get("id") or len(parts)
            if key not in data:
                data[key] = dict(chunk)
                parts.append(data[key])
            data[key]["data"] = chunk["data"]
    return message


def _apply_call(parts: list[dict[str, Any]], calls: dict[str, dict[str, Any]], chunk: Chunk) -> None:
    kind, slot = chunk["type"], chunk["toolCallId"]
    part = calls.get(slot)
    if part is None:
        named = {"type": f"tool-{chunk['toolName']}"}
        if chunk.get("dynamic"):
            named = {"type": "dynamic-tool", "toolName": chunk["toolName"]}
        part = calls[slot] = {**named, "toolCallId": slot}
        parts.append(part)
    if "providerExecuted" in chunk:
        part["providerExecuted"] = chunk["providerExecuted"]
    if kind == "tool-input-start":
        for name in ("input", "output", "errorText"):
            part.pop(name, None)
        part["state"] = "input-streaming"
    elif kind == "tool-approval-request":
        part.update(state="approval-requested", approval={"id": chunk["approvalId"]})
        part["approval"]["descriptor"] = chunk["approvalDescriptor"]
    elif kind in _FINAL_STATES:
        part["state"], fields = _FINAL_STATES[kind]
        for name in ("output", "errorText"):
            if kind != "tool-output-denied":
                part.pop(name, None)
        part.update({name: chunk[name] for name in (*fields, "input") if name in chunk})


def _merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Recursively merge metadata, as clients do."""
    merged = dict(one)
    for key, value in other.items():
        existing = merged.get(key)
        nested = isinstance(existing, dict) and isinstance(value, dict)
        merged[key] = _merge(cast("Chunk", existing), cast("Chunk", value)) if nested else value
    return merged
