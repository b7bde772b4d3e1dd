"""The flow engine: stage tables, and the stage manager that moves through them."""

from rxloop.thinking.stages.branches import Branch, Branches, BranchStatus, Selection
from rxloop.thinking.stages.definition import Branching, BranchingKind, IterationPoint, Stage, StrategyDefinition, Trait
from rxloop.thinking.stages.stage_manager import LOOP_CAP, StageManager, StageSnapshot

__all__ = [
    "LOOP_CAP",
    "Branch",
    "BranchStatus",
    "Branches",
    "Branching",
    "BranchingKind",
    "IterationPoint",
    "Selection",
    "Stage",
    "StageManager",
    "StageSnapshot",
    "StrategyDefinition",
    "Trait",
]
