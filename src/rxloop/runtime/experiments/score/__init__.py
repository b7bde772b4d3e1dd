"""What gives a run of an experiment a score: by its answer, by the way to it, by what it took, or by a judging model.

    scorers = [score.exact(), score.called("search", "read"), score.cost(), score.judge("openai:gpt-5", "It is kind.")]

A function of a result, or of a case and a result, is a scorer as it stands.
"""

from __future__ import annotations

from rxloop.runtime.experiments.score.answers import contains, exact, fields, matches
from rxloop.runtime.experiments.score.judge import judge
from rxloop.runtime.experiments.score.measures import cost, seconds, tokens
from rxloop.runtime.experiments.score.trajectory import called, no_tool, steps, tool_failures
from rxloop.runtime.experiments.scorer import view

__all__ = [
    "called",
    "contains",
    "cost",
    "exact",
    "fields",
    "judge",
    "matches",
    "no_tool",
    "seconds",
    "steps",
    "tokens",
    "tool_failures",
    "view",
]
