"""The flow engine: reasoning strategies as data, and the place of a flow in its strategy."""

from rxloop.thinking.flow.branches import (
    Branch,
    Branches,
    BranchesSnapshot,
    BranchSnapshot,
    BranchStatus,
    Selection,
)
from rxloop.thinking.flow.definition import (
    Branching,
    BranchingKind,
    IterationPoint,
    Stage,
    StrategyDefinition,
    Trait,
)
from rxloop.thinking.flow.plan import Arguments, Plan, PlanStep, parse_plan
from rxloop.thinking.flow.stages import LOOP_CAP, StageManager, StageSnapshot
from rxloop.thinking.flow.table import STRATEGIES, strategy
from rxloop.thinking.flow.vote import Vote, decided, majority, normalise

__all__ = [
    "LOOP_CAP",
    "STRATEGIES",
    "Arguments",
    "Branch",
    "BranchSnapshot",
    "BranchStatus",
    "Branches",
    "BranchesSnapshot",
    "Branching",
    "BranchingKind",
    "IterationPoint",
    "Plan",
    "PlanStep",
    "Selection",
    "Stage",
    "StageManager",
    "StageSnapshot",
    "StrategyDefinition",
    "Trait",
    "Vote",
    "decided",
    "majority",
    "normalise",
    "parse_plan",
    "strategy",
]
