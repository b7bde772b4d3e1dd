"""Chunks as one UI message, for pages that are loaded again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rxloop.server.ui_messages.frames import Chunk

_CLOSED = {
    "tool-input-available": ("input-available", ()),
    "tool-input-error": ("output-error", ("errorText",)),
    "tool-output-available": ("output-available", ("output",)),
    "tool-output-error": ("output-error", ("errorText",)),
    "tool-output-denied": ("output-denied", ()),
}
"""What a chunk makes of the part of a call: its state, and the fields that come with it."""


def ui_message(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Make the message of a run of all of its chunks."""
    message: dict[str, Any] = {"id": "", "role": "assistant", "parts": []}
    parts: list[dict[str, Any]] = message["parts"]
    streaming: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        kind: str = chunk["type"]
        if "messageMetadata" in chunk:
            message["metadata"] = _merged(message.get("metadata", {}), chunk["messageMetadata"])
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
            _call(parts, calls, chunk)
        elif kind.startswith("data-") and not chunk.get("transient"):
            _data(parts, chunk)
    return message


def _call(parts: list[dict[str, Any]], calls: dict[str, dict[str, Any]], chunk: Chunk) -> None:
    kind, slot = chunk["type"], chunk["toolCallId"]
    part = calls.get(slot)
    if part is None:
        dynamic = chunk.get("dynamic", False)
        named = (
            {"type": "dynamic-tool", "toolName": chunk["toolName"]}
            if dynamic
            else {"type": f"tool-{chunk['toolName']}"}
        )
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
    elif kind in _CLOSED:
        part["state"], fields = _CLOSED[kind]
        for name in ("output", "errorText"):
            if kind != "tool-output-denied":
                part.pop(name, None)
        part.update({name: chunk[name] for name in (*fields, "input") if name in chunk})


def _data(parts: list[dict[str, Any]], chunk: Chunk) -> None:
    for part in parts:
        if "id" in chunk and (part["type"], part.get("id")) == (chunk["type"], chunk["id"]):
            part["data"] = chunk["data"]
            return
    parts.append(dict(chunk))


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge metadata as a client does: objects key by key."""
    merged = dict(one)
    for key, value in other.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = _merged(cast("Chunk", before), cast("Chunk", value)) if both else value
    return merged
