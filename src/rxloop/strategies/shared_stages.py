"""Common strategy stages, and their transitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from rxloop.thinking.stages import Stage

PROBLEM_RECEPTION = Stage(
    name="problem_reception",
    description="Take in the problem and restate it",
    prompt="Restate the problem in your own words: what is given, what is asked, and what an answer has to satisfy.",
)
"""Initial stage of all built-in strategies."""

CONTINUATION_DECISION = Stage(
    name="continuation_decision",
    description="Choose: go on, branch off, or conclude",
    prompt="Decide on what you have so far: go on, try another line, or conclude. Give the reason.",
)
"""The decision point of `linear`, `scratchpad` and `tree_of_thoughts`."""

BRANCH_CREATION = Stage(
    name="branch_creation",
    description="Open an alternative line from a given thought",
    prompt="Open an alternative line: say from which thought it departs, and what it does differently.",
)
"""Branching stage of `linear` and `tree_of_thoughts`."""

SOLUTION_FORMULATION = Stage(
    name="solution_formulation",
    description="Derive the answer from what was found",
    prompt="Derive the answer from what you found, and from nothing else.",
)
"""Penultimate stage of `chain_of_thought`, `react`, `self_ask` and `tree_of_thoughts`."""

FINAL_RESPONSE = Stage(
    name="final_response",
    description="Give the answer; nothing follows",
    prompt="Give the answer to the person who asked: complete, and without your working notes.",
)
"""Final stage of all built-in strategies."""


def link_stages(*stages: Stage) -> tuple[Stage, ...]:
    """Return the stages of a strategy. Each stage without `next` is followed by the next argument."""
    linked = (replace(stage, next=stage.next or following.name) for stage, following in pairwise(stages))
    return (*linked, stages[-1])
