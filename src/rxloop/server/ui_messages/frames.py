"""Chunks and data parts as server-sent events."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
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
from rxloop.protocol.messages import FilePart, ImagePart

Chunk = dict[str, Any]
"""A chunk as plain data; the types are those of `UIMessageChunk` of the package `ai`."""

_ENVELOPE = frozenset(to for field in Event.model_fields.values() if (to := field.serialization_alias) is not None)
_TOLD = frozenset(("stage", "context-compressed", "thinking-failed", "tools-unavailable"))
"""The other kinds that are told, as they are."""


def data_part(event: Event) -> dict[str, Any] | None:
    """Make the fields of a chunk of an event; None for one that is not told."""
    match event:
        case CustomEvent():
            return {"type": f"data-{event.name}", "data": event.data}
        case ThoughtStreamEvent():
            return {"type": "data-thought", "id": event.thought_id, "data": _fields(event)}
        case SubtaskEvent():
            return {"type": "data-subtask", "id": event.subtask_id, "data": _fields(event)}
        case MessageAddedEvent():
            return {"type": "data-message", "data": _fields(event)}
        case GapEvent():
            return {"type": "data-gap", "transient": True, "data": _fields(event)}
        case _ if event.kind in _TOLD:
            return {"type": f"data-{event.kind}", "data": _fields(event)}
        case _:
            return None


def _fields(event: Event) -> dict[str, Any]:
    """What an event says beside its envelope, as clients may see it."""
    fields: dict[str, Any] = orjson.loads(event.to_json(public=True))
    return {name: value for name, value in fields.items() if name not in _ENVELOPE}


def parts_beside(id: str, message: ContentCompleteEvent) -> Iterator[dict[str, Any]]:
    """Tell of the pages that the text of a message rests on, and of its files.

    Args:
        id: That of the text.
        message: The message.
    """
    # A page is shown once, however many words rest on it.
    pages: dict[str, str | None] = {}
    for citation in message.citations:
        if citation.url and citation.url.startswith(("https://", "http://")):
            pages.setdefault(citation.url, citation.title)
    for number, (url, title) in enumerate(pages.items()):
        named = {"title": title} if title else {}
        yield {"type": "source-url", "sourceId": f"{id}:source:{number}", "url": url, **named}
    for file in message.files:
        yield file_part(file, named=False)


def file_part(file: ImagePart | FilePart, *, named: bool = True) -> dict[str, Any]:
    """Write a file as the AI SDK has it; chunks take no name."""
    media_type = file.media_type or ("image/*" if isinstance(file, ImagePart) else "application/octet-stream")
    url = file.url if file.url is not None else f"data:{media_type};base64,{b64encode(file.data or b'').decode()}"
    name = {"filename": file.filename} if named and isinstance(file, FilePart) and file.filename else {}
    return {"type": "file", "mediaType": media_type, "url": url, **name}


DONE = b"data: [DONE]\n\n"
"""The frame after the last chunk."""


def encode(chunk: Chunk) -> bytes:
    """Write a chunk as a frame."""
    data = orjson.dumps(chunk)
    if b'"__proto__"' in data or b'"prototype"' in data:
        # A client refuses the stream for them, and they may come from anywhere, such as the result of a tool.
        data = orjson.dumps(_without_prototypes(chunk))
    return b"data: %b\n\n" % data


def _without_prototypes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_prototypes(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    kept = {key: _without_prototypes(each) for key, each in given.items() if key != "__proto__"}
    if isinstance(made := kept.get("constructor"), dict):
        cast("dict[str, Any]", made).pop("prototype", None)
    return kept
