"""The flow engine: reasoning strategies as data, and the place of a flow in its strategy."""

from rxloop.thinking.flow.branches import (
    Branch,
    Branches,
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
from rxloop.thinking.flow.stage_manager import LOOP_CAP, StageManager, StageSnapshot
from rxloop.thinking.flow.table import STAGE_TABLES, table_of
from rxloop.thinking.flow.vote import Vote, decided, majority, normalise

STRATEGIES = STAGE_TABLES
"""The stage tables under the name by which `rxloop` exports them."""

__all__ = [
    "LOOP_CAP",
    "STAGE_TABLES",
    "STRATEGIES",
    "Arguments",
    "Branch",
    "BranchStatus",
    "Branches",
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
    "table_of",
]
