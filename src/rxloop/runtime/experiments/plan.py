"""What an experiment is made of: what is asked of whom, and how the answers are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rxloop.agent import Agent
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.requests import Strategy
from rxloop.pipeline.seams import Provider
from rxloop.protocol.messages import Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.asking import OnInput
from rxloop.runtime.experiments.case import Case
from rxloop.runtime.experiments.scorer import Scorer


@dataclass(frozen=True, slots=True)
class Variant:
    """An agent, and what is different in its runs; None leaves it as the agent has it.

    Attributes:
        agent: Makes the runs. It may have another loop, other tools or other instructions than the next variant's.
        model: In the place of the agent's model.
        strategy: What makes a run of the loop, or the name of one of `rxloop.strategies`.
        settings: Over those of the agent.
        limits: Over those of the agent.
        prompt: Makes of a case what is asked, in the place of the experiment's `prompt=`.
        on_input: Answers the questions of a run, which otherwise ends there without an answer.
    """

    agent: Agent[Any, Any]
    model: Provider | str | None = None
    strategy: Strategy | str | None = None
    settings: ModelSettings | None = None
    limits: Limits | None = None
    prompt: Callable[[Case], Prompt] | None = None
    on_input: OnInput | None = None

    def options(self) -> dict[str, Any]:
        """The options of its runs."""
        names = ("model", "strategy", "settings", "limits", "on_input")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """The fields of an experiment; see `experiment`."""

    name: str
    cases: Sequence[Case]
    variants: Mapping[str, Variant]
    scorers: Sequence[Scorer]
    log: EventLog | None
    prompt: Callable[[Case], Prompt] | None
    deps: Callable[[Case], Any] | None
    repeats: int
    concurrency: int
