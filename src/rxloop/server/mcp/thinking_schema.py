"""Tool schemas and JSON and Mermaid representations of thinking sessions."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from rxloop.pipeline.requests import ToolDefinition
from rxloop.support.text import to_mermaid_text, to_one_line
from rxloop.thinking.sessions.session import PlacedThought, Session
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

_MAX_DRAWN_CHARACTERS = 120
"""Maximum thought length in the flowchart."""

_MAX_INTEGER = 2**53 - 1
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
_OFFICIAL_FIELDS: dict[str, Any] = {
    "thoughtNumber": _NUMBER,
    "totalThoughts": _NUMBER,
    "nextThoughtNeeded": {"type": "boolean"},
    "branches": {"type": "array", "items": _TEXT},
    "thoughtHistoryLength": _NUMBER,
}
_STORED_THOUGHT = {
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


def _relax(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field as the reference server defines it, with booleans that may be strings and bounded integers."""
    if field.get("type") == "boolean":
        return {**field, "type": ["boolean", "string"]}
    if field.get("type") == "integer":
        return {**field, "maximum": _MAX_INTEGER}
    return field


_SESSION_ID = {**SESSION_PROPERTIES["sessionId"], "description": "Another session than that of this connection."}


def list_tools(strategic: ToolDefinition | None) -> list[types.Tool]:
    """Return the thinking tools, including the tool for strategies if there are any."""
    more = [] if strategic is None else [_make_strategic_tool(strategic)]
    return [_make_think_tool(), _make_history_tool(), _make_clear_tool(), *more]


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


def _make_think_tool() -> types.Tool:
    return types.Tool(
        name=THINK,
        title="Sequential Thinking",
        description=DESCRIPTION,
        input_schema=_make_schema({name: _relax(field) for name, field in PROPERTIES.items()}, REQUIRED),
        output_schema=_make_schema(
            {**_OFFICIAL_FIELDS, "sessionId": _TEXT, "summary": _TEXT, "warnings": _WARNINGS}, list(_OFFICIAL_FIELDS)
        ),
        # Each call only adds a thought.
        annotations=_annotate(),
    )


def _make_strategic_tool(definition: ToolDefinition) -> types.Tool:
    return types.Tool(
        name=definition.name,
        title="Strategic Thinking",
        description=definition.description,
        input_schema=definition.parameters,
        annotations=_annotate(),
    )


def _make_history_tool() -> types.Tool:
    page = {"type": "integer", "minimum": 1}
    return types.Tool(
        name=HISTORY,
        title="Thinking history",
        description=(
            "Read the thoughts of this session again, in the order in which they came. Use it when you no longer see "
            "the earlier thoughts, and before you conclude from a long session."
        ),
        input_schema=_make_schema(
            {
                "branchId": {**_TEXT, "description": "Only the thoughts of this branch."},
                "first": {**page, "description": "The place of the first thought to give, from 1; 1 by default."},
                "limit": {**page, "maximum": MAX_PAGE, "description": f"How many thoughts to give; {PAGE} by default."},
                "sessionId": _SESSION_ID,
            }
        ),
        output_schema=_make_schema(
            {
                "sessionId": {"type": ["string", "null"]},
                "status": {"type": "string", "enum": ["active", "complete"]},
                "thoughtHistoryLength": _COUNT,
                "branches": _OFFICIAL_FIELDS["branches"],
                "thoughts": {"type": "array", "items": _STORED_THOUGHT},
                "next": {"type": "integer", "minimum": 1, "description": "The `first` of the next page."},
            },
            ["sessionId", "status", "thoughtHistoryLength", "branches", "thoughts"],
        ),
        annotations=_annotate(read_only=True, idempotent=True),
    )


def _make_clear_tool() -> types.Tool:
    return types.Tool(
        name=CLEAR,
        title="Clear thinking",
        description="Forget all thoughts of this session and begin anew. Use it when another problem begins.",
        input_schema=_make_schema({"sessionId": _SESSION_ID}),
        output_schema=_make_schema(
            {
                "sessionId": {"type": ["string", "null"], "description": "The session from now on."},
                "forgotten": {**_COUNT, "description": "How many thoughts there were."},
            },
            ["sessionId", "forgotten"],
        ),
        annotations=_annotate(destructive=True, idempotent=True),
    )


def _annotate(*, read_only: bool = False, destructive: bool = False, idempotent: bool = False) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent, open_world_hint=False
    )


def _make_schema(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
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
    page: list[PlacedThought] = []
    next_position: int | None = None
    for position in range(first, len(session) + 1):
        placed = session.get_thought(position)
        if branch is not None and placed.branch != branch:
            continue
        if len(page) == limit:
            next_position = position
            break
        page.append(placed)
    thoughts = {**_make_header(session), "thoughts": [_convert_thought(placed) for placed in page]}
    return thoughts if next_position is None else {**thoughts, "next": next_position}


def to_json(session: Session) -> dict[str, Any]:
    """Return a session as JSON data."""
    return {**_make_header(session), "thoughts": [_convert_thought(placed) for placed in session.list_placed()]}


def to_mermaid(session: Session) -> str:
    """Return a session as a Mermaid flowchart, with dotted lines from revisions to the revised thoughts."""
    lines = ["flowchart TD"]
    edges: list[str] = []
    for placed in session.list_placed():
        text = to_mermaid_text(to_one_line(placed.thought.thought, _MAX_DRAWN_CHARACTERS))
        lines.append(f'    n{placed.place}["{to_mermaid_text(_format_title(placed))}<br/>{text}"]')
        if placed.follows is not None:
            name = f'|"{to_mermaid_text(to_one_line(placed.branch or ""))}"| ' if placed.opens else ""
            edges.append(f"    n{placed.follows} -->{name or ' '}n{placed.place}")
        if placed.revises is not None:
            edges.append(f'    n{placed.place} -.->|"revises"| n{placed.revises}')
    return "\n".join([*lines, *edges]) + "\n"


def _make_header(session: Session) -> dict[str, Any]:
    return {
        "sessionId": session.session_id or None,
        "status": session.status,
        "thoughtHistoryLength": len(session),
        "branches": session.branch_names(),
    }


def _convert_thought(placed: PlacedThought) -> dict[str, Any]:
    thought = placed.thought
    return {
        "place": placed.place,
        **thought.echo,
        "totalThoughts": thought.total_thoughts,
        "branchFromThought": thought.branch_from_thought,
    }


def _format_title(placed: PlacedThought) -> str:
    thought = placed.thought
    return f"{thought.thought_number}/{thought.total_thoughts}"
