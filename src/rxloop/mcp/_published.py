"""The tools and resources of the sequential-thinking server, as clients see them."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from rxloop.thinking.sessions.thought import DESCRIPTION, PROPERTIES, REQUIRED, SESSION_PROPERTIES

THINK = "sequentialthinking"
HISTORY = "thinking_history"
CLEAR = "clear_thinking"

SESSION_URI = "thinking://session"
GRAPH_URI = "thinking://session/graph"

PAGE = 50
"""Thoughts of a page of the history, unless the client says how many."""
MOST = 500
"""Thoughts of the longest page."""

_LARGEST = 2**53 - 1
_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_WARNINGS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"code": _TEXT, "message": _TEXT},
        "required": ["code", "message"],
    },
}
_OFFICIAL: dict[str, Any] = {
    "thoughtNumber": _NUMBER,
    "totalThoughts": _NUMBER,
    "nextThoughtNeeded": {"type": "boolean"},
    "branches": {"type": "array", "items": _TEXT},
    "thoughtHistoryLength": _NUMBER,
}
_KEPT = {
    "type": "object",
    "properties": {
        "place": {"type": "integer", "minimum": 1, "description": "Its place in the session, from 1."},
        "thought": _TEXT,
        "thoughtNumber": _NUMBER,
        "totalThoughts": _NUMBER,
        "isRevision": {"type": "boolean"},
        "revisesThought": {"type": ["integer", "null"]},
        "branchFromThought": {"type": ["integer", "null"]},
        "branchId": {"type": ["string", "null"]},
    },
    "required": ["place", "thought", "thoughtNumber", "totalThoughts"],
}


def _lenient(field: dict[str, Any]) -> dict[str, Any]:
    """A field as the reference server publishes it: truth values may be text, numbers have an end."""
    if field.get("type") == "boolean":
        return {**field, "type": ["boolean", "string"]}
    if field.get("type") == "integer":
        return {**field, "maximum": _LARGEST}
    return field


_SESSION_ID = {**SESSION_PROPERTIES["sessionId"], "description": "Another session than that of this connection."}


def tools() -> list[types.Tool]:
    """The tools of the server."""
    return [_think(), _history(), _clear()]


def resources() -> list[types.Resource]:
    """The resources of the server."""
    return [
        types.Resource(
            uri=SESSION_URI,
            name="session",
            title="Thinking session",
            description="All thoughts of the session of this connection, as JSON.",
            mime_type="application/json",
        ),
        types.Resource(
            uri=GRAPH_URI,
            name="graph",
            title="Thinking session, drawn",
            description="The session of this connection as a Mermaid flowchart, with its branches and revisions.",
            mime_type="text/vnd.mermaid",
        ),
    ]


def _think() -> types.Tool:
    return types.Tool(
        name=THINK,
        title="Sequential Thinking",
        description=DESCRIPTION,
        input_schema=_object({name: _lenient(field) for name, field in PROPERTIES.items()}, REQUIRED),
        output_schema=_object(
            {**_OFFICIAL, "sessionId": _TEXT, "summary": _TEXT, "warnings": _WARNINGS}, list(_OFFICIAL)
        ),
        # A thought is added with each call, and nothing is ever taken away.
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
        ),
    )


def _history() -> types.Tool:
    page = {"type": "integer", "minimum": 1}
    return types.Tool(
        name=HISTORY,
        title="Thinking history",
        description=(
            "Read the thoughts of this session again, in the order in which they came. Use it when you no longer see "
            "the earlier thoughts, and before you conclude from a long session."
        ),
        input_schema=_object(
            {
                "branchId": {**_TEXT, "description": "Only the thoughts of this branch."},
                "first": {**page, "description": "The place of the first thought to give, from 1; 1 by default."},
                "limit": {**page, "maximum": MOST, "description": f"How many thoughts to give; {PAGE} by default."},
                "sessionId": _SESSION_ID,
            }
        ),
        output_schema=_object(
            {
                "sessionId": {"type": ["string", "null"]},
                "status": {"type": "string", "enum": ["active", "complete"]},
                "thoughtHistoryLength": _COUNT,
                "branches": _OFFICIAL["branches"],
                "thoughts": {"type": "array", "items": _KEPT},
                "next": {"type": "integer", "minimum": 1, "description": "The `first` of the next page."},
            },
            ["sessionId", "status", "thoughtHistoryLength", "branches", "thoughts"],
        ),
        annotations=types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )


def _clear() -> types.Tool:
    return types.Tool(
        name=CLEAR,
        title="Clear thinking",
        description="Forget all thoughts of this session and begin anew. Use it when another problem begins.",
        input_schema=_object({"sessionId": _SESSION_ID}),
        output_schema=_object(
            {
                "sessionId": {"type": ["string", "null"], "description": "The session from now on."},
                "forgotten": {**_COUNT, "description": "How many thoughts there were."},
            },
            ["sessionId", "forgotten"],
        ),
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
        ),
    )


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
    }
