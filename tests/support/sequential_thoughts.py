"""Arguments and results for tests of sequential thinking."""

from __future__ import annotations

from typing import Any

from rxloop.storage import MemoryArtifacts
from rxloop.thinking import ThinkingSessions, ThoughtResult


def thought(number: Any = 1, total: Any = 3, needed: Any = True, text: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "thought": f"thought {number}" if text is None else text,
        "nextThoughtNeeded": needed,
        "thoughtNumber": number,
        "totalThoughts": total,
        **fields,
    }


async def think(*thoughts: dict[str, Any], sessions: ThinkingSessions | None = None) -> ThoughtResult:
    """Submit thoughts to one session and return the last result."""
    sessions = sessions or ThinkingSessions(MemoryArtifacts())
    results = [await sessions.think(each, session_id="s") for each in thoughts]
    return results[-1]


def codes(result: ThoughtResult) -> list[str]:
    return [warning.code for warning in result.warnings]


TO_BRANCHES = ["problem_reception", "approach_exploration", "branch_creation"]
