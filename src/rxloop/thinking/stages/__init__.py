"""The flow engine: stage tables, and the stage manager that moves through them."""

from rxloop.thinking.stages.branches import Branch, Branches, BranchStatus, Selection
from rxloop.thinking.stages.definition import Branching, BranchingKind, IterationPoint, Stage, StrategyDefinition, Trait
from rxloop.thinking.stages.plan import Arguments, Plan, PlanStep, parse_plan
from rxloop.thinking.stages.stage_manager import LOOP_CAP, StageManager, StageSnapshot
from rxloop.thinking.stages.table import STAGE_TABLES, table_of
from rxloop.thinking.stages.vote import Vote, decided, majority, normalise

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
