"""A session that follows a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from rxloop.errors import ConfigurationError, InvalidThought, StageRefused
from rxloop.thinking.sessions.session import Placed, Session
from rxloop.thinking.sessions.thought import Label, Name, OptionalCount, ThoughtInput
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages.branches import Branches
from rxloop.thinking.stages.stage_manager import LOOP_CAP, StageManager


def _score(value: object) -> object:
    """Read a finite number, which may be written as text."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PydanticCustomError("score", "must be a number, such as 0.8")
    return number


class StagedInput(ThoughtInput):
    """A thought of a strategy as a model sends it; whatever else it has are fields of its stage."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    strategy: Label = None
    stage: Label = None
    evaluation_score: Annotated[float | None, BeforeValidator(_score)] = None
    keep: OptionalCount = None
    merge_branch: Name = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the stage that were sent and that this class does not know."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def given(self) -> set[str]:
        """The names on the wire of everything that was sent and says something."""
        known = {name: type(self).model_fields[name].alias or name for name in self.model_fields_set if name in _KNOWN}
        return {alias for name, alias in known.items() if getattr(self, name) is not None} | self.fields.keys()


_KNOWN = StagedInput.model_fields.keys()


class _Move(NamedTuple):
    """What a thought does in the flow."""

    line: str | None
    parent: str | None
    opens: bool
    strategy: str | None
    """The strategy that begins with it."""
    stage: str | None
    """The stage that it names."""
    score: float | None
    keep: int | None
    merge: str | None


class Flow:
    """The place of a session in its strategy, of its main line and of each branch, after some of its thoughts.

    Args:
        definitions: The strategies that there are, by name and alias.
        loop_cap: How often each way back may be taken.
        budget: The thoughts of a line, from its first to the end; None is no limit.
    """

    def __init__(
        self, definitions: Mapping[str, StrategyDefinition], *, loop_cap: int = LOOP_CAP, budget: int | None = None
    ) -> None:
        self._definitions = definitions
        self._loop_cap = loop_cap
        self._budget = budget
        self.branches: Branches | None = None
        """The main line and its branches; None before the first thought."""

    def follow(self, session: Session, placed: Placed) -> None:
        """Take a thought of the session that was admitted before."""
        kept = placed.thought.flow
        if kept is None:
            return
        parent = session.at(placed.follows).branch if placed.opens and placed.follows is not None else None
        begins = kept["strategy"] if kept.get("begins") else None
        move = _Move(
            placed.branch, parent, placed.opens, begins, kept["stage"], kept.get("score"), kept.get("keep"),
            kept.get("merged"),
        )  # fmt: skip
        self._carry_out(move)

    def admit(self, session: Session, given: StagedInput, *, strict: bool = False) -> dict[str, Any]:
        """Take the next thought, and say what is to be kept of it.

        If it raises, this flow may be half changed: fold the session again.

        Args:
            session: The session, as it is before the thought.
            given: The thought.
            strict: Refuse a thought that lacks what its stage asks for.

        Raises:
            InvalidThought: No strategy, or one that is not known; with `strict`, fields are missing.
            StageRefused: The stage may not follow, or several may and none was named.
            BranchRefused: Its branch is not open, or cannot be scored, selected or merged.
        """
        move = self._move_of(session, given)
        trail, selection = self._carry_out(move)
        assert self.branches is not None
        stages = self.branches.stages(move.line)
        missing = stages.strategy.stage(stages.stage).missing(given.given)
        if missing and strict:
            wanted = dict.fromkeys(missing, f"required in the stage {stages.stage}, but missing")
            said = "; ".join(f"{name}: {reason}" for name, reason in wanted.items())
            raise InvalidThought(said, wanted, code="missing_fields")
        kept: dict[str, Any] = {
            "strategy": stages.strategy.name,
            "stage": stages.stage,
            "trail": trail,
            "nextStages": list(stages.next_stages),
            "stepsToEnd": stages.steps_to_end,
            "begins": True if move.strategy is not None else None,
            "missingFields": list(missing) or None,
            "score": move.score,
            "keep": move.keep,
            "kept": list(selection.kept) if selection is not None else None,
            "pruned": list(selection.pruned) if selection is not None else None,
            "merged": move.merge,
            "fields": given.fields or None,
        }
        return {name: value for name, value in kept.items() if value is not None}

    def _move_of(self, session: Session, given: StagedInput) -> _Move:
        line = session.line_of(given.branch_id, given.branch_from_thought)
        opens = line is not None and session.branch(line) is None
        parent = None
        if opens and given.branch_from_thought is not None and len(session):
            place = session.find(given.branch_from_thought, session.at(len(session)).branch)
            parent = session.at(place).branch if place is not None else None
        return _Move(
            line=line,
            parent=parent,
            opens=opens,
            strategy=self._strategy_begun(given, line),
            stage=given.stage,
            score=given.evaluation_score,
            keep=given.keep,
            merge=given.merge_branch,
        )

    def _strategy_begun(self, given: StagedInput, line: str | None) -> str | None:
        """Find the strategy that begins with a thought: with the first one, or with one that switches to another."""
        named = self._definition(given.strategy) if given.strategy is not None else None
        if self.branches is None:
            if named is None and len(self._names) > 1:
                reason = f"which one? There are {', '.join(self._names)}"
                raise InvalidThought(f"strategy: {reason}", {"strategy": reason}, code="strategy_required")
            return named.name if named is not None else self._names[0]
        main = self.branches.main
        if named is None or named.name == main.strategy.name:
            return None
        if line is not None or not (main.is_decision_point or main.is_terminal):
            where = ", ".join(main.strategy.decision_points) or "its end"
            raise StageRefused(
                f"{main.strategy.name}, stage {main.stage}: another strategy may begin on the main line and at a "
                f"decision point only ({where}); allowed: {', '.join(main.next_stages)}",
                strategy=main.strategy.name,
                stage=main.stage,
                target=named.initial,
                allowed=main.next_stages,
            )
        return named.name

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(definition.name for definition in self._definitions.values()))

    def _definition(self, name: str) -> StrategyDefinition:
        found = self._definitions.get(name) or self._definitions.get(
            name.strip().lower().replace("-", "_").replace(" ", "_")
        )
        if found is None:
            reason = f"there is no strategy {name!r}; there are {', '.join(self._names)}"
            raise InvalidThought(f"strategy: {reason}", {"strategy": reason}, code="unknown_strategy")
        return found

    def _carry_out(self, move: _Move) -> tuple[list[tuple[str | None, str]], Any]:
        """Carry out a move; return the stages that it went through, each with the one before, and what was selected."""
        trail: list[tuple[str | None, str]] = []
        before = self.branches.main.stage if self.branches is not None else None
        if move.strategy is not None:
            main = self._begin(self._definition(move.strategy))
            trail.append((before, main.stage))
            self.branches = Branches(main)
        assert self.branches is not None
        branches = self.branches
        if move.opens and move.line is not None:
            branches.open(move.line, move.parent)
        if move.merge is not None:
            branches.merge(move.merge, move.line)
            self._take_over(move.merge, move.line)
        stages = branches.stages(move.line)
        left = stages.stage
        if move.stage is None:
            if move.strategy is None:
                stages.advance()
        elif move.stage != left:
            stages.transition_to(move.stage)
        elif move.strategy is None:
            stages.stay()
        if stages.stage != left:
            trail.append((left, stages.stage))
        if move.score is not None and move.line is not None:
            branches.score(move.line, move.score)
        return trail, branches.select(move.keep) if move.keep is not None else None

    def _begin(self, definition: StrategyDefinition) -> StageManager:
        steps = None if self._budget is None else self._budget - 1
        return StageManager(definition, loop_cap=self._loop_cap, budget=steps)

    def _take_over(self, name: str, line: str | None) -> None:
        """Let a line go on from where the branch that ends in it has come to, if that is nearer to the end."""
        assert self.branches is not None
        merged, stages = self.branches[name].stages, self.branches.stages(line)
        if merged.steps_to_end >= stages.steps_to_end:
            return
        if line is None:
            self.branches.main = merged.copy()
        else:
            self.branches[line].stages = merged.copy()


def index_definitions(definitions: tuple[StrategyDefinition, ...]) -> dict[str, StrategyDefinition]:
    """Index strategies by their names and aliases.

    Raises:
        ConfigurationError: Two have the same name.
    """
    found: dict[str, StrategyDefinition] = {}
    for definition in definitions:
        for name in (definition.name, *definition.aliases):
            if found.setdefault(name, definition) is not definition:
                raise ConfigurationError(f"two strategies are called {name!r}")
    return found
