"""A thinking session as clients read it: in pages, whole, and drawn."""

from __future__ import annotations

from typing import Any

from rxloop.support.text import to_mermaid_text, to_one_line
from rxloop.thinking.sessions import Placed, Session

_WIDTH = 120
"""The characters of a thought that are drawn."""


def page(session: Session, *, first: int, limit: int, branch: str | None) -> dict[str, Any]:
    """Some thoughts of a session, and where the next ones begin.

    Args:
        session: The session.
        first: The place of the first thought, from 1.
        limit: How many thoughts at most.
        branch: Only those of this branch.
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


def everything(session: Session) -> dict[str, Any]:
    """The whole session."""
    return {**_head(session), "thoughts": [_thought(placed) for placed in session.placed()]}


def flowchart(session: Session) -> str:
    """The session for Mermaid: lines lead from thought to thought, dotted ones from a revision to what it replaces."""
    lines = ["flowchart TD"]
    edges: list[str] = []
    for placed in session.placed():
        text = to_mermaid_text(to_one_line(placed.thought.thought, _WIDTH))
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
