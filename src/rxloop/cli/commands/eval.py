"""Command `eval`: experiment execution, reports and comparisons."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from rxloop.cli.agent_loader import load
from rxloop.cli.terminal import (
    FAILED,
    format_error,
    format_table,
    get_status_line,
    notify,
    run_main,
    write,
    write_plain,
)
from rxloop.errors import ConfigurationError, ScoreMissing
from rxloop.evals.experiment import Experiment
from rxloop.evals.report import Comparison, Report, compare
from rxloop.evals.tables import (
    format_number,
    list_comparison_notes,
    list_report_notes,
    make_comparison_rows,
    make_report_rows,
)

_COLOURS = {"better": "green", "worse": "bold red"}


class _Threshold(NamedTuple):
    scorer: str
    variant: str | None
    minimum: float


def eval_(
    experiment: Annotated[str, typer.Argument(metavar="MODULE:EXPERIMENT", help="Experiment or factory function.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as HTML.")] = None,
    before: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="Previous report of --out to compare with.")
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-under", metavar="SCORER=MEAN", help="Minimum mean, or VARIANT/SCORER=MEAN for one variant."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of a table.")] = False,
) -> None:
    """Run an experiment.

    Experiments with a log resume after an interruption.

    Exit codes: 0 success, 1 a mean is too low or clearly worse than before, or all runs failed, 2 invalid usage, 130
    cancelled.
    """

    async def main() -> int:
        # Detect invalid options before spending money on model calls.
        thresholds = [_parse_threshold(text) for text in fail_under or ()]
        earlier = Report.from_json(before.read_bytes()) if before is not None else None
        async with await _load_experiment(experiment) as loaded:
            _check_thresholds(thresholds, loaded)
            report = await _run_experiment(loaded)
        if out is not None:
            out.write_bytes(report.to_json())
        if html is not None:
            html.write_text(report.to_html(), encoding="utf-8")
        if json:
            write_plain(report.to_json().decode() + "\n")
        else:
            _show_report(report)
        missed = [*_find_missed(thresholds, report)]
        if earlier is not None:
            comparison = compare(earlier, report)
            _show_comparison(comparison)
            missed += [f"{change.scorer} of {change.variant[1]} is worse than before" for change in comparison.worse]
        if report.trials and all(trial.error is not None for trial in report.trials):
            missed.append("all runs failed")
        for reason in missed:
            notify(Text(f"! {reason}", "red"))
        return FAILED if missed else 0

    run_main(main())


async def _load_experiment(reference: str) -> Experiment:
    value: Any = load(reference, "the experiment")
    if callable(value) and not isinstance(value, type):
        try:
            value = value()
            value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            raise ConfigurationError(f"{reference!r} did not create an experiment: {format_error(error)}") from error
    if not isinstance(value, Experiment):
        raise ConfigurationError(f"{reference!r} must be an Experiment or a function that returns one, got {value!r}")
    return value


async def _run_experiment(experiment: Experiment) -> Report:
    """Run the experiment, with a progress line on interactive terminals."""
    line, report = get_status_line(), None
    try:
        async for report in experiment.run():
            if line is not None:
                line.show(Text(f"{len(report.trials)} of {report.planned} trials", "dim"))
    except asyncio.CancelledError:
        if experiment.log is not None:
            notify("cancelled; repeat the command to continue")
        raise
    finally:
        if line is not None:
            line.hide()
    assert report is not None
    return report


def _show_report(report: Report) -> None:
    first, *notes = list_report_notes(report)
    write(Text(f"{first}\n", "bold"))
    _write_rows(make_report_rows(report))
    for note in notes:
        write(Text(f"{note}\n", "red" if note.startswith("!") else "dim"))


def _show_comparison(comparison: Comparison) -> None:
    write("\n")
    _write_rows(make_comparison_rows(comparison.changes))
    for note in list_comparison_notes(comparison.changes, comparison.left_out):
        write(Text(f"{note}\n", "dim"))


def _write_rows(rows: list[tuple[str, ...]]) -> None:
    head, *rest = rows
    write(format_table([name.upper() for name in head], rest, lambda _, cell: _COLOURS.get(cell, "")))


def _parse_threshold(text: str) -> _Threshold:
    name, equals, minimum = text.rpartition("=")
    variant, slash, scorer = name.rpartition("/")
    try:
        return _Threshold(scorer or name, variant if slash else None, float(minimum if equals else "nothing"))
    except ValueError:
        raise ConfigurationError(f"--fail-under must be SCORER=MEAN, such as exact=0.9, got {text!r}") from None


def _check_thresholds(thresholds: list[_Threshold], experiment: Experiment) -> None:
    """Validate scorer and variant names before spending money on model calls."""
    for threshold in thresholds:
        scorers = [scorer.name for scorer in experiment.scorers]
        if threshold.scorer not in scorers:
            raise ConfigurationError(f"--fail-under: unknown scorer {threshold.scorer}; use {', '.join(scorers)}")
        variants = experiment.variants
        if threshold.variant is not None and threshold.variant not in variants:
            raise ConfigurationError(f"--fail-under: unknown variant {threshold.variant}; use {', '.join(variants)}")


def _find_missed(thresholds: list[_Threshold], report: Report) -> Iterator[str]:
    """Yield error messages for means that are missing or too low."""
    for scorer, variant, minimum in thresholds:
        for name in [variant] if variant is not None else report.variants:
            try:
                mean = report.of(name).mean(scorer)
            except ScoreMissing as error:
                yield f"{scorer} of {name}: {error}"
                continue
            if mean < minimum:
                yield f"{scorer} of {name} is {format_number(mean)}, but must be at least {format_number(minimum)}"
