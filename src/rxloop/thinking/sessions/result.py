"""Answer to an accepted thought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rxloop.thinking.sessions.session import RAISED, Placed, Session
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtWarning

BYTES_PER_TOKEN = 4

FLOW = ("strategy", "stage", "nextStages", "stepsToEnd", "missingFields", "kept", "pruned", "merged")
"""What is said of the flow that a thought belongs to."""

_NAMES = 20
"""Names of branches that a model is shown, and that stand in a result on the stream."""


@dataclass(frozen=True, slots=True)
class ThoughtResult:
    """A thought was accepted: what the session says to it."""

    session: Session
    """The session, with this thought in it; when a call is repeated, as it is by now."""
    placed: Placed
    """The thought and its place."""
    notices: tuple[ThoughtWarning, ...] = ()
    """What happened to the session that was asked for: it has expired, or is not there any more."""

    @property
    def thought(self) -> SequentialThought:
        """The thought as it is kept."""
        return self.placed.thought

    @property
    def session_id(self) -> str:
        """The session that the thought is in."""
        return self.session.session_id

    @property
    def thought_id(self) -> str:
        """The id of the thought on the stream."""
        return self.session.thought_id(self.placed.place)

    @property
    def history(self) -> Sequence[SequentialThought]:
        """The thoughts of the session up to this one."""
        return [placed.thought for placed in self.session.placed(last=self.placed.place)]

    @property
    def branches(self) -> list[str]:
        """The names of the branches, in the order in which they were opened."""
        return self.session.branch_names(self.placed.branches)

    @property
    def warnings(self) -> tuple[ThoughtWarning, ...]:
        """What is odd about the thought, and about the session that it was meant for."""
        return (*self.notices, *self.thought.warnings)

    @property
    def complete(self) -> bool:
        """Whether the session was complete with this thought."""
        return not self.thought.next_thought_needed and not self.thought.needs_more_thoughts

    @property
    def summary(self) -> str | None:
        """One sentence once the session is complete."""
        if not self.complete:
            return None
        count, branches = self.placed.place, self.placed.branches
        return f"Sequential thinking complete: {count} thoughts processed across {branches} branches."

    def official(self) -> dict[str, Any]:
        """Return the five keys of the reference server's answer, with its values.

        It knows nothing of `needsMoreThoughts`, so that a total which was raised for it is the one before.
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
        """Everything, as JSON data."""
        history = [thought.echo for thought in self.history]
        return {**self._head(self.branches), "thoughtHistory": history, **self._remarks()}

    def to_published(self, budget: int) -> dict[str, Any]:
        """Return what the stream and its log keep, as JSON data: with the thoughts that the model is shown.

        The whole history in each answer would make a log that grows with the square of the thoughts; it is in the
        session.

        Args:
            budget: Tokens of the text for the model, as for `to_text`.
        """
        names, said = self._newest_branches()
        shown = max(self._fitting(self._room(budget, {})), 1)
        places = self.session.placed(self.placed.place - shown + 1, self.placed.place)
        said |= {"thoughtHistory": [placed.thought.echo for placed in places]}
        return {**self._head(names), **said, **self._earlier(shown), **self._remarks()}

    def to_text(self, budget: int, **more: Any) -> str:
        """Write what a model is shown, as JSON: with the last thoughts that fit, and how many came before.

        Args:
            budget: Tokens for the whole text, at four bytes each. The head, the warnings and the newest thought, cut
                where it must be, are there in any case.
            **more: What else to say.
        """
        room = self._room(budget, more)
        shown = self._fitting(room)
        places = self.session.placed(self.placed.place - max(shown, 1) + 1, self.placed.place)
        history = [_short(placed.thought) for placed in places]
        if not shown:
            history[0]["thought"] = _cut(history[0]["thought"], max(room - 100, 40))
        said = {**self._brief(more), "thoughtHistory": history, **self._earlier(max(shown, 1))}
        return orjson.dumps(said).decode()

    def _brief(self, more: dict[str, Any]) -> dict[str, Any]:
        names, count = self._newest_branches()
        return {**self._head([_cut(name, 60) for name in names]), **self._remarks(), **more, **count}

    def _room(self, budget: int, more: dict[str, Any]) -> int:
        """Count the bytes that are left for thoughts in a text of so many tokens."""
        return budget * BYTES_PER_TOKEN - len(orjson.dumps(self._brief(more)))

    def _fitting(self, room: int) -> int:
        """Count how many of the last thoughts fit."""
        count = 0
        while count < self.placed.place:
            room -= len(orjson.dumps(_short(self.session.at(self.placed.place - count).thought))) + 1
            if room < 0:
                break
            count += 1
        return count

    def _earlier(self, shown: int) -> dict[str, str]:
        earlier = self.placed.place - shown
        return {"earlierThoughts": f"{earlier} earlier thoughts are kept and not shown here."} if earlier else {}

    def _newest_branches(self) -> tuple[list[str], dict[str, int]]:
        """Return the names of the branches that were opened last, and how many there are if those are not all."""
        names = self.branches[-_NAMES:]
        return names, {"branchCount": self.placed.branches} if self.placed.branches > len(names) else {}

    def _head(self, branches: list[str]) -> dict[str, Any]:
        return {
            "sessionId": self.session_id,
            **self.official(),
            "totalThoughts": self.thought.total_thoughts,
            "branches": branches,
            **{name: value for name, value in (self.thought.flow or {}).items() if name in FLOW},
        }

    def _remarks(self) -> dict[str, Any]:
        remarks: dict[str, Any] = {}
        if self.summary is not None:
            remarks["summary"] = self.summary
        if self.warnings:
            remarks["warnings"] = [warning.model_dump() for warning in self.warnings]
        return remarks


def _short(thought: SequentialThought) -> dict[str, Any]:
    """Write a thought as a model is shown it: only what says something."""
    return {name: value for name, value in thought.echo.items() if value not in (None, False)}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
