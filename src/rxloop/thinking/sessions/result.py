"""Results of accepted thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rxloop.thinking.sessions.session import RAISED, PlacedThought, Session
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtWarning

BYTES_PER_TOKEN = 4

FLOW = ("strategy", "stage", "nextStages", "stepsToEnd", "missingFields", "kept", "pruned", "merged")
"""Result fields for strategy flows."""

_MAX_NAMES = 20
"""Maximum number of branch names in messages to the model and in published results."""


@dataclass(frozen=True, slots=True)
class ThoughtResult:
    """Result of an accepted thought."""

    session: Session
    """Session including this thought. For a repeated call, the current session."""
    placed: PlacedThought
    """Current thought with its position."""
    notices: tuple[ThoughtWarning, ...] = ()
    """Warnings that the requested session has expired or does not exist."""

    @property
    def thought(self) -> SequentialThought:
        """The stored thought."""
        return self.placed.thought

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self.session.session_id

    @property
    def thought_id(self) -> str:
        """Id of the thought in events."""
        return self.session.thought_id(self.placed.place)

    @property
    def history(self) -> Sequence[SequentialThought]:
        """Session thoughts up to and including this result."""
        return [placed.thought for placed in self.session.list_placed(last=self.placed.place)]

    @property
    def branches(self) -> list[str]:
        """Branch names in creation order."""
        return self.session.branch_names(self.placed.branches)

    @property
    def warnings(self) -> tuple[ThoughtWarning, ...]:
        """Warnings about the thought and the requested session."""
        return (*self.notices, *self.thought.warnings)

    @property
    def complete(self) -> bool:
        """True if this thought completed the session."""
        return not self.thought.next_thought_needed and not self.thought.needs_more_thoughts

    @property
    def summary(self) -> str | None:
        """A summary if the session is complete, otherwise None."""
        if not self.complete:
            return None
        count, branches = self.placed.place, self.placed.branches
        return f"Sequential thinking complete: {count} thoughts processed across {branches} branches."

    def official(self) -> dict[str, Any]:
        """Return the five result keys of the official sequential-thinking MCP server.

        That server does not support `needsMoreThoughts`. If a thought raised the total by it, the result contains the
        previous total.
        """
        raised = any(warning.code == RAISED for warning in self.thought.warnings)
        return {
            "thoughtNumber": self.thought.thought_number,
            "totalThoughts": self.thought.thought_number if raised else self.thought.total_thoughts,
            "nextThoughtNeeded": self.thought.next_thought_needed,
            "branches": self.branches,
            "thoughtHistoryLength": self.placed.place,
        }

    def to_json(self) -> dict[str, Any]:
        """Return all data of the result as JSON data."""
        history = [thought.echo for thought in self.history]
        return {**self._head(self.branches), "thoughtHistory": history, **self._make_remarks()}

    def to_published(self, budget: int) -> dict[str, Any]:
        """Return result data for events and the log, including the thoughts visible to the model.

        The full history is available from the session. Repeating it in every result would cause quadratic log growth.

        Args:
            budget: Token budget of the model text, see `to_text`.
        """
        names, data = self._newest_branches()
        count = max(self._count_fitting(self._count_available_bytes(budget, {})), 1)
        newest = self.session.list_placed(self.placed.place - count + 1, self.placed.place)
        data |= {"thoughtHistory": [placed.thought.echo for placed in newest]}
        return {**self._head(names), **data, **self._earlier_note(count), **self._make_remarks()}

    def to_text(self, budget: int, **more: Any) -> str:
        """Serialize the result to JSON for the model, including as many recent thoughts as possible.

        Args:
            budget: Token budget, assuming four bytes per token. The summary, warnings and newest thought are always
                included. Long thoughts are truncated if necessary.
            **more: Additional fields.
        """
        available = self._count_available_bytes(budget, more)
        count = self._count_fitting(available)
        newest = self.session.list_placed(self.placed.place - max(count, 1) + 1, self.placed.place)
        history = [_to_entry(placed.thought) for placed in newest]
        if not count:
            history[0]["thought"] = _truncate(history[0]["thought"], max(available - 100, 40))
        data = {**self._make_summary(more), "thoughtHistory": history, **self._earlier_note(max(count, 1))}
        return orjson.dumps(data).decode()

    def _make_summary(self, more: dict[str, Any]) -> dict[str, Any]:
        names, branch_count = self._newest_branches()
        return {**self._head([_truncate(name, 60) for name in names]), **self._make_remarks(), **more, **branch_count}

    def _count_available_bytes(self, budget: int, more: dict[str, Any]) -> int:
        """Return the number of bytes available for thoughts."""
        return budget * BYTES_PER_TOKEN - len(orjson.dumps(self._make_summary(more)))

    def _count_fitting(self, available: int) -> int:
        """Return the number of recent thoughts that fit."""
        count = 0
        while count < self.placed.place:
            available -= len(orjson.dumps(_to_entry(self.session.get_thought(self.placed.place - count).thought))) + 1
            if available < 0:
                break
            count += 1
        return count

    def _earlier_note(self, count: int) -> dict[str, str]:
        earlier = self.placed.place - count
        return {"earlierThoughts": f"{earlier} earlier thoughts are kept and not shown here."} if earlier else {}

    def _newest_branches(self) -> tuple[list[str], dict[str, int]]:
        """Return the names of the most recently opened branches, and the number of branches if not all are included."""
        names = self.branches[-_MAX_NAMES:]
        return names, {"branchCount": self.placed.branches} if self.placed.branches > len(names) else {}

    def _head(self, branches: list[str]) -> dict[str, Any]:
        return {
            "sessionId": self.session_id,
            **self.official(),
            "totalThoughts": self.thought.total_thoughts,
            "branches": branches,
            **{name: value for name, value in (self.thought.flow or {}).items() if name in FLOW},
        }

    def _make_remarks(self) -> dict[str, Any]:
        remarks: dict[str, Any] = {}
        if self.summary is not None:
            remarks["summary"] = self.summary
        if self.warnings:
            remarks["warnings"] = [warning.model_dump() for warning in self.warnings]
        return remarks


def _to_entry(thought: SequentialThought) -> dict[str, Any]:
    """Return the non-empty fields of a thought for the model."""
    return {name: value for name, value in thought.echo.items() if value not in (None, False)}


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
