"""Flow position management for strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from typing_extensions import TypedDict

from rxloop.errors import ConfigurationError, StageChoiceRequired, StageRefused
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages import files as load
from rxloop.thinking.stages.routes import Edge

LOOP_CAP = 10
"""Default maximum number of times that each loop may be taken."""


class StageSnapshot(TypedDict):
    """JSON-serializable state of a `StageManager`."""

    strategy: str
    stage: str
    history: list[str]
    stays: int
    loop_cap: int
    budget: int | None


class StageManager:
    """Position of a flow in its strategy.

    The strategy defines the possible next stages. To ensure that every flow ends, some of them are excluded:

    * After `loop_cap` repetitions, a loop is closed, and so is every stage that only leads to this loop.
    * With a budget, stages are excluded if the end cannot be reached within the remaining steps.

    There is always at least one next stage before the end. Refused transitions do not change the position.

    Args:
        definition: The strategy. `rxloop.strategies.get_stages("react")` returns one of the nine.
        loop_cap: Maximum number of times that each loop may be taken.
        budget: Maximum number of steps. Steps are transitions, and thoughts that stay in their stage (`stay`). None
            means no limit.

    Raises:
        ConfigurationError: The budget is too small for the shortest path to the end.
    """

    __slots__ = ("_history", "_passes", "_stage", "_stays", "_ways", "budget", "loop_cap", "strategy")

    def __init__(self, definition: StrategyDefinition, *, loop_cap: int = LOOP_CAP, budget: int | None = None) -> None:
        self.strategy: Final = definition
        if loop_cap < 0:
            raise ConfigurationError(f"loop_cap must not be negative, got {loop_cap}")
        self._stage = self.strategy.initial
        self._history: list[str] = []
        self._stays = 0
        self.loop_cap: Final = loop_cap
        self.budget = budget
        self._passes = dict.fromkeys(self.strategy.loops, 0)
        self._close_loops()
        if budget is not None and budget < self.steps_to_end:
            raise ConfigurationError(
                f"budget must be at least {self.steps_to_end} for the strategy {self.strategy.name!r}, got {budget}"
            )

    @property
    def stage(self) -> str:
        """The current stage."""
        return self._stage

    @property
    def history(self) -> tuple[str, ...]:
        """Previously visited stages in order, including repetitions."""
        return tuple(self._history)

    @property
    def passes(self) -> dict[Edge, int]:
        """Iteration counts by loop."""
        return dict(self._passes)

    @property
    def steps(self) -> int:
        """Step count, including transitions and thoughts within the same stage."""
        return len(self._history) + self._stays

    @property
    def remaining(self) -> int | None:
        """Remaining step budget, or None if unlimited."""
        return None if self.budget is None else self.budget - self.steps

    @property
    def steps_to_end(self) -> int:
        """Number of transitions on the shortest open path to the end."""
        return 0 if self.is_terminal else 1 + min(steps for _, steps in self._ways[self._stage])

    @property
    def next_stages(self) -> tuple[str, ...]:
        """Allowed next stages in strategy order. Empty for terminal stages."""
        remaining = self.remaining
        return tuple(target for target, steps in self._ways[self._stage] if remaining is None or steps < remaining)

    @property
    def is_terminal(self) -> bool:
        """True for terminal stages."""
        return self._stage in self.strategy.terminal

    @property
    def is_decision_point(self) -> bool:
        """True if the strategy defines multiple transitions from the current stage, including closed transitions."""
        return self._stage in self.strategy.decision_points

    @property
    def prompt(self) -> str:
        """Instructions for the model in the current stage."""
        return self.strategy.stage(self._stage).prompt

    def can_transition_to(self, stage: str) -> bool:
        """Return True if `enter` would accept the stage."""
        return stage in self.next_stages

    def enter(self, stage: str) -> str:
        """Move to a stage.

        Returns:
            The new current stage.

        Raises:
            StageRefused: If the stage may not follow. The flow is not changed.
        """
        if not self.can_transition_to(stage):
            raise self._make_refusal(StageRefused, self._explain_rejection(stage) + self._describe_allowed(), stage)
        self._move(stage)
        return stage

    def advance(self) -> str:
        """Move to the only possible next stage.

        Returns:
            The new current stage.

        Raises:
            StageChoiceRequired: If several stages may follow. The error lists them in the order of the strategy.
            StageRefused: If the flow is at the end.
        """
        offered = self.next_stages
        if len(offered) > 1:
            choices = ", ".join(offered)
            raise self._make_refusal(
                StageChoiceRequired, f"{self._position()}: there is a choice, so name the next stage; one of {choices}"
            )
        if not offered:
            raise self._make_refusal(StageRefused, f"{self._position()} is the end; no stage follows")
        self._move(offered[0])
        return self._stage

    def stay(self) -> None:
        """Use a step of the budget for a thought that stays in the current stage.

        Raises:
            StageRefused: If all remaining steps are needed to reach the end. The flow is not changed.
        """
        remaining = self.remaining
        if remaining is not None and remaining <= self.steps_to_end:
            left = f"{self._position()}: {_steps(remaining)} left, and the end needs them all"
            raise self._make_refusal(StageRefused, left + self._describe_allowed(), self._stage)
        self._stays += 1

    def copy(self) -> Self:
        """Return an independent copy at the same stage."""
        other = object.__new__(type(self))
        for name in StageManager.__slots__:
            setattr(other, name, getattr(self, name))
        other._history = self._history.copy()
        other._passes = self._passes.copy()
        return other

    def snapshot(self) -> StageSnapshot:
        """Return the state as plain values."""
        return {
            "strategy": self.strategy.name,
            "stage": self._stage,
            "history": self._history.copy(),
            "stays": self._stays,
            "loop_cap": self.loop_cap,
            "budget": self.budget,
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], definition: StrategyDefinition) -> Self:
        """Restore a flow from a snapshot.

        The transitions in the snapshot are repeated, so the restored position is always valid.

        Args:
            snapshot: Return value of `snapshot`, also after a round trip through JSON.
            definition: The strategy of the flow.

        Raises:
            ConfigurationError: The snapshot is invalid, or belongs to another strategy.
        """
        data = load.validate(StageSnapshot, snapshot, "the snapshot of a flow")
        if data["strategy"] != definition.name:
            raise ConfigurationError(
                f"the snapshot belongs to the strategy {data['strategy']!r}, not to {definition.name!r}"
            )
        manager = cls(definition, loop_cap=data["loop_cap"])
        manager._walk([*data["history"], data["stage"]])
        manager._stays, manager.budget = data["stays"], data["budget"]
        remaining = manager.remaining
        if data["stays"] < 0 or (remaining is not None and remaining < manager.steps_to_end):
            raise ConfigurationError(
                f"the snapshot is inconsistent: {manager.steps} of {data['budget']} steps taken, "
                f"{data['stays']} of them stays, and {manager.steps_to_end} steps to the end"
            )
        return manager

    def __repr__(self) -> str:
        return f"<StageManager {self._position()} after {_steps(self.steps)}>"

    def _walk(self, path: list[str]) -> None:
        if path[0] != self._stage:
            raise ConfigurationError(
                f"the snapshot does not match the strategy: {self.strategy.name!r} starts at {self._stage!r}"
            )
        for stage in path[1:]:
            try:
                self.enter(stage)
            except StageRefused as error:
                raise ConfigurationError(f"the snapshot does not match the strategy: {error}") from error

    def _move(self, stage: str) -> None:
        edge = (self._stage, stage)
        self._history.append(self._stage)
        self._stage = stage
        if edge in self._passes:
            self._passes[edge] += 1
            if self._passes[edge] == self.loop_cap:
                self._close_loops()

    def _close_loops(self) -> None:
        closed = frozenset(edge for edge, passes in self._passes.items() if passes >= self.loop_cap)
        self._ways = self.strategy.ways(closed)

    def _make_refusal(self, kind: type[StageRefused], message: str, target: str | None = None) -> StageRefused:
        return kind(message, strategy=self.strategy.name, stage=self._stage, target=target, allowed=self.next_stages)

    def _position(self) -> str:
        return f"{self.strategy.name}, stage {self._stage}"

    def _describe_allowed(self) -> str:
        offered = self.next_stages
        return f"; allowed: {', '.join(offered)}" if offered else "; no stage follows"

    def _explain_rejection(self, stage: str) -> str:
        """Return the reason for rejecting a transition."""
        position = self._position()
        if stage not in self.strategy:
            return f"{position}: the strategy has no stage {stage!r}"
        if stage not in self.strategy.transitions[self._stage]:
            return f"{position}: {stage} may not follow"
        if stage not in dict(self._ways[self._stage]):
            return f"{position}: the loop by way of {stage} was taken {self.loop_cap} times, which is its cap"
        return f"{position}: by way of {stage} the end is too far for the {_steps(self.remaining or 0)} left"


def _steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"
