"""What has no part of its own in a UI message, as data parts."""

from __future__ import annotations

from typing import Any

import orjson

from rxloop.protocol.events import (
    CustomEvent,
    Event,
    GapEvent,
    MessageAddedEvent,
    SubtaskEvent,
    ThoughtStreamEvent,
)

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
