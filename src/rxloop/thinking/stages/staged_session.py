"""Strategy-guided thinking sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from rxloop.errors import ConfigurationError, InvalidThought, StageRefused
from rxloop.thinking.sessions.session import PlacedThought, Session
from rxloop.thinking.sessions.thought import Label, Name, OptionalCount, ThoughtInput
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages.branches import Branches
from rxloop.thinking.stages.stage_manager import LOOP_CAP, StageManager


def _score(value: object) -> object:
    """Parse a finite number from a numeric or string value."""
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
    """Thought sent by a model while following a strategy. Additional fields belong to the stage."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    strategy: Label = None
    stage: Label = None
    evaluation_score: Annotated[float | None, BeforeValidator(_score)] = None
    keep: OptionalCount = None
    merge_branch: Name = None

    @property
    def fields(self) -> dict[str, Any]:
        """Additional stage-specific fields."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def given(self) -> set[str]:
        """Wire names of all non-empty fields that were sent."""
        known = {name: type(self).model_fields[name].alias or name for name in self.model_fields_set if name in _KNOWN}
        return {alias for name, alias in known.items() if getattr(self, name) is not None} | self.fields.keys()


_KNOWN = StagedInput.model_fields.keys()


class _Move(NamedTuple):
    """Flow changes caused by a thought."""

    line: str | None
    parent: str | None
    opens: bool
    strategy: str | None
    """Newly started strategy, if any."""
    stage: str | None
    """Stage named by the thought."""
    score: float | None
    keep: int | None
    merge: str | None


class Flow:
    """Position of a session in its strategy, for the main branch and each other branch.

    Args:
        definitions: Available strategies by name and alias.
        loop_cap: Maximum number of times that each loop may be taken.
        budget: Maximum number of thoughts on a branch. None for no limit.
    """

    def __init__(
        self, definitions: Mapping[str, StrategyDefinition], *, loop_cap: int = LOOP_CAP, budget: int | None = None
    ) -> None:
        self._definitions = definitions
        self._loop_cap = loop_cap
        self._budget = budget
        self.branches: Branches | None = None
        """Flow branches. None before the first thought."""

    def follow(self, session: Session, placed: PlacedThought) -> None:
        """Apply a stored thought of the session."""
        data = placed.thought.flow
        if data is None:
            return
        parent = session.get_thought(placed.follows).branch if placed.opens and placed.follows is not None else None
        begins = data["strategy"] if data.get("begins") else None
        move = _Move(
            placed.branch, parent, placed.opens, begins, data["stage"], data.get("score"), data.get("keep"),
            data.get("merged"),
        )  # fmt: skip
        self._execute(move)

    def admit(self, session: Session, thought: StagedInput, *, strict: bool = False) -> dict[str, Any]:
        """Apply the next thought, and return the data to store with it.

        If this raises, the flow may be partly changed and must be rebuilt from the session.

        Args:
            session: Session before the thought.
            thought: The thought.
            strict: True to reject a thought without the required fields of its stage.

        Raises:
            InvalidThought: If the strategy is missing or unknown, or fields are missing and `strict` is set.
            StageRefused: If the stage may not follow, or several stages may follow and none was named.
            BranchRefused: If the branch is not open, or cannot be scored, selected or merged.
        """
        move = self._parse_move(session, thought)
        trail, selection = self._execute(move)
        assert self.branches is not None
        stages = self.branches.stages(move.line)
        missing = stages.strategy.stage(stages.stage).find_missing(thought.given)
        if missing and strict:
            fields = dict.fromkeys(missing, f"required in the stage {stages.stage}, but missing")
            message = "; ".join(f"{name}: {reason}" for name, reason in fields.items())
            raise InvalidThought(message, fields, code="missing_fields")
        data: dict[str, Any] = {
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
            "fields": thought.fields or None,
        }
        return {name: value for name, value in data.items() if value is not None}

    def _parse_move(self, session: Session, thought: StagedInput) -> _Move:
        line = session.find_branch(thought.branch_id, thought.branch_from_thought)
        opens = line is not None and session.branch(line) is None
        parent = None
        if opens and thought.branch_from_thought is not None and len(session):
            position = session.find(thought.branch_from_thought, session.get_thought(len(session)).branch)
            parent = session.get_thought(position).branch if position is not None else None
        return _Move(
            line=line,
            parent=parent,
            opens=opens,
            strategy=self._find_new_strategy(thought, line),
            stage=thought.stage,
            score=thought.evaluation_score,
            keep=thought.keep,
            merge=thought.merge_branch,
        )

    def _find_new_strategy(self, thought: StagedInput, line: str | None) -> str | None:
        """Return the strategy started by an initial thought or a strategy switch, or None."""
        named = self._definition(thought.strategy) if thought.strategy is not None else None
        if self.branches is None:
            if named is None and len(self._names) > 1:
                reason = f"which one? There are {', '.join(self._names)}"
                raise InvalidThought(f"strategy: {reason}", {"strategy": reason}, code="strategy_required")
            return named.name if named is not None else self._names[0]
        main = self.branches.main
        if named is None or named.name == main.strategy.name:
            return None
        if line is not None or not (main.is_decision_point or main.is_terminal):
            points = ", ".join(main.strategy.decision_points) or "its end"
            raise StageRefused(
                f"{main.strategy.name}, stage {main.stage}: another strategy may only begin on the main branch at "
                f"a decision point ({points}); allowed: {', '.join(main.next_stages)}",
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
        definition = self._definitions.get(name) or self._definitions.get(
            name.strip().lower().replace("-", "_").replace(" ", "_")
        )
        if definition is None:
            reason = f"there is no strategy {name!r}; there are {', '.join(self._names)}"
            raise InvalidThought(f"strategy: {reason}", {"strategy": reason}, code="unknown_strategy")
        return definition

    def _execute(self, move: _Move) -> tuple[list[tuple[str | None, str]], Any]:
        """Apply a flow change and return the visited stages along with the branch selection."""
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
            stages.enter(move.stage)
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
        """Move a branch to the position of a merged branch if it is closer to the end."""
        assert self.branches is not None
        merged, stages = self.branches[name].stages, self.branches.stages(line)
        if merged.steps_to_end >= stages.steps_to_end:
            return
        if line is None:
            self.branches.main = merged.copy()
        else:
            self.branches[line].stages = merged.copy()


def index_definitions(definitions: tuple[StrategyDefinition, ...]) -> dict[str, StrategyDefinition]:
    """Index strategy definitions by name and alias.

    Raises:
        ConfigurationError: Duplicate name or alias.
    """
    definitions_by_name: dict[str, StrategyDefinition] = {}
    for definition in definitions:
        for name in (definition.name, *definition.aliases):
            if definitions_by_name.setdefault(name, definition) is not definition:
                raise ConfigurationError(f"two strategies have the name {name!r}")
    return definitions_by_name
