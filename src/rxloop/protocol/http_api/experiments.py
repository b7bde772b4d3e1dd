"""Request and response bodies of the HTTP API for experiments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rxloop.protocol.envelope import Timestamp
from rxloop.protocol.messages import Usage, Wire
from rxloop.protocol.model import is_missing
from rxloop.protocol.run_events import State


class ExperimentSummary(Wire):
    """Experiment with runs in the log."""

    name: str
    variants: list[str]
    cases: int
    """Number of cases with runs."""
    runs: int
    failed: int
    """Number of failed runs."""
    updated: Timestamp
    """Time of the last event of its runs."""


class ExperimentPage(Wire):
    """Experiments, by their newest runs. An experiment may continue on the next page."""

    experiments: list[ExperimentSummary]
    next: str | None = Field(default=None, exclude_if=is_missing)
    """Value of `after` for the next page. Missing if all runs were examined."""


class MeanScore(Wire):
    """Mean score of a variant over all cases, with its confidence interval."""

    scorer: str
    better: Literal["higher", "lower"]
    mean: float
    low: float
    high: float


class VariantInfo(Wire):
    """Variant of an experiment."""

    name: str
    scores: list[MeanScore]
    """Scores of the latest report. Empty without a report, and for labels and failed scorers."""
    usage: Usage
    """Tokens of all its runs."""


class CaseRun(Wire):
    """Run of a case with a variant."""

    task_id: str
    repeat: int
    state: State
    scores: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict[str, "bool | int | float | str | None"]
    )
    """Scores by scorer. Empty without a report. A missing value means that the scorer failed."""


class CaseInfo(Wire):
    """Case of an experiment."""

    id: str
    title: str
    """Beginning of the input, at most 120 characters."""
    cells: dict[str, list[CaseRun]]
    """Runs by variant."""


class ExperimentInfo(Wire):
    """Experiment with its variants and cases."""

    name: str
    has_report: bool
    """True if the log contains a report, with scores."""
    variants: list[VariantInfo]
    cases: list[CaseInfo]


class AddCase(Wire):
    """Request to append a run to the cases of the server."""

    expected: Annotated[str, Field(max_length=100_000)] | None = None
    """Expected answer. None uses the answer of the run, and an empty string omits it."""


class AddedCase(Wire):
    """Case that was appended."""

    id: str
    """Id of the case, which is the id of the run."""
    count: int
    """Number of cases of the server."""
    file: str
    """Name of the file of cases, without its folder."""
