"""Tool schemas and JSON and Mermaid representations of thinking sessions."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from rxloop.support.text import to_mermaid_text, to_one_line
from rxloop.thinking.sessions.session import Placed, Session
from rxloop.thinking.sessions.thought import DESCRIPTION, PROPERTIES, REQUIRED, SESSION_PROPERTIES

THINK = "sequentialthinking"
HISTORY = "thinking_history"
CLEAR = "clear_thinking"

SESSION_URI = "thinking://session"
GRAPH_URI = "thinking://session/graph"

PAGE = 50
"""Default page size of the history."""
MAX_PAGE = 500
"""Maximum page size of the history."""

_DRAWN_CHARACTERS = 120
"""Maximum thought length in the flowchart."""

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
    """Return a field as the reference server defines it, with booleans that may be strings and bounded integers."""
    if field.get("type") == "boolean":
        return {**field, "type": ["boolean", "string"]}
    if field.get("type") == "integer":
        return {**field, "maximum": _LARGEST}
    return field


_SESSION_ID = {**SESSION_PROPERTIES["sessionId"], "description": "Another session than that of this connection."}


def list_tools() -> list[types.Tool]:
    """Return the sequential thinking tools."""
    return [_think_tool(), _history_tool(), _clear_tool()]


def list_resources() -> list[types.Resource]:
    """Return the session resources."""
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


def _think_tool() -> types.Tool:
    return types.Tool(
        name=THINK,
        title="Sequential Thinking",
        description=DESCRIPTION,
        input_schema=_object({name: _lenient(field) for name, field in PROPERTIES.items()}, REQUIRED),
        output_schema=_object(
            {**_OFFICIAL, "sessionId": _TEXT, "summary": _TEXT, "warnings": _WARNINGS}, list(_OFFICIAL)
        ),
        # Each call only adds a thought.
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
        ),
    )


def _history_tool() -> types.Tool:
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
                "limit": {**page, "maximum": MAX_PAGE, "description": f"How many thoughts to give; {PAGE} by default."},
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


def _clear_tool() -> types.Tool:
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


def make_page(session: Session, *, first: int, limit: int, branch: str | None) -> dict[str, Any]:
    """Return a page of thoughts.

    Args:
        session: Session to read.
        first: Position of the first thought, starting at 1.
        limit: Maximum number of thoughts.
        branch: Name of a branch to filter by, or None for all thoughts.
    """
    found: list[Placed] = []
    further: int | None = None
    for place in range(first, len(session) + 1):
        placed = session.at(place)
        if branch is not None and placed.branch != branch:
            continue
        if len(found) == limit:
            further = place
            break
        found.append(placed)
    thoughts = {**_head(session), "thoughts": [_thought(placed) for placed in found]}
    return thoughts if further is None else {**thoughts, "next": further}


def to_json(session: Session) -> dict[str, Any]:
    """Return a session as JSON data."""
    return {**_head(session), "thoughts": [_thought(placed) for placed in session.placed()]}


def to_mermaid(session: Session) -> str:
    """Return a session as a Mermaid flowchart, with dotted lines from revisions to the revised thoughts."""
    lines = ["flowchart TD"]
    edges: list[str] = []
    for placed in session.placed():
        text = to_mermaid_text(to_one_line(placed.thought.thought, _DRAWN_CHARACTERS))
        lines.append(f'    n{placed.place}["{to_mermaid_text(_title(placed))}<br/>{text}"]')
        if placed.follows is not None:
            name = f'|"{to_mermaid_text(to_one_line(placed.branch or ""))}"| ' if placed.opens else ""
            edges.append(f"    n{placed.follows} -->{name or ' '}n{placed.place}")
        if placed.revises is not None:
            edges.append(f'    n{placed.place} -.->|"revises"| n{placed.revises}')
    return "\n".join([*lines, *edges]) + "\n"


def _head(session: Session) -> dict[str, Any]:
    return {
        "sessionId": session.session_id or None,
        "status": session.status,
        "thoughtHistoryLength": len(session),
        "branches": session.branch_names(),
    }


def _thought(placed: Placed) -> dict[str, Any]:
    thought = placed.thought
    return {
        "place": placed.place,
        **thought.echo,
        "totalThoughts": thought.total_thoughts,
        "branchFromThought": thought.branch_from_thought,
    }


def _title(placed: Placed) -> str:
    thought = placed.thought
    return f"{thought.thought_number}/{thought.total_thoughts}"
