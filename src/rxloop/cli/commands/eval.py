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
from rxloop.cli.terminal import FAILED, failure, running, say, status_line, table, write, write_plain
from rxloop.errors import ConfigurationError, ScoreMissing
from rxloop.evals.experiment import Experiment
from rxloop.evals.report import Comparison, Report, compare
from rxloop.evals.tables import comparison_notes, comparison_rows, number, report_notes, report_rows

_COLOURS = {"better": "green", "worse": "bold red"}


class _Threshold(NamedTuple):
    scorer: str
    variant: str | None
    least: float


def eval_(
    experiment: Annotated[
        str, typer.Argument(metavar="MODULE:EXPERIMENT", help="An experiment, or a function that makes one.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page.")] = None,
    before: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="A report to compare with, as --out writes it.")
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-under", metavar="SCORER=MEAN", help="Fail below it; VARIANT/SCORER=MEAN for one variant alone."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write the report as JSON, in place of the table.")] = False,
) -> None:
    """Carry out an experiment.

    With a log in it, it goes on where an earlier call was cut off.

    Exit codes: 0 carried out, 1 a mean is too low, clearly worse than before, or there is no answer at all; 2 wrong
    usage, 130 cancelled.
    """

    async def main() -> int:
        # Detect invalid options before spending money on model calls.
        thresholds = [_threshold(text) for text in fail_under or ()]
        earlier = Report.from_json(before.read_bytes()) if before is not None else None
        async with await _experiment(experiment) as made:
            _check(thresholds, made)
            report = await _carried_out(made)
        if out is not None:
            out.write_bytes(report.to_json())
        if html is not None:
            html.write_text(report.to_html(), encoding="utf-8")
        if json:
            write_plain(report.to_json().decode() + "\n")
        else:
            _show(report)
        missed = [*_missed(thresholds, report)]
        if earlier is not None:
            comparison = compare(earlier, report)
            _show_comparison(comparison)
            missed += [f"{change.scorer} of {change.variant[1]} is worse than before" for change in comparison.worse]
        if report.trials and all(trial.error is not None for trial in report.trials):
            missed.append("no run has an answer")
        for reason in missed:
            say(Text(f"! {reason}", "red"))
        return FAILED if missed else 0

    running(main())


async def _experiment(reference: str) -> Experiment:
    found: Any = load(reference, "the experiment")
    if callable(found) and not isinstance(found, type):
        try:
            found = found()
            found = await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise ConfigurationError(f"{reference!r} did not give an experiment: {failure(error)}") from error
    if not isinstance(found, Experiment):
        raise ConfigurationError(f"{reference!r} is {found!r}: it must be an experiment, or a function that gives one")
    return found


async def _carried_out(made: Experiment) -> Report:
    """Run the experiment, with a progress line on interactive terminals."""
    line, report = status_line(), None
    try:
        async for report in made.run():
            if line is not None:
                line.show(Text(f"{len(report.trials)} of {report.planned} trials", "dim"))
    except asyncio.CancelledError:
        if made.log is not None:
            say("cancelled; the same command goes on with what is left")
        raise
    finally:
        if line is not None:
            line.hide()
    assert report is not None
    return report


def _show(report: Report) -> None:
    first, *notes = report_notes(report)
    write(Text(f"{first}\n", "bold"))
    _write_rows(report_rows(report))
    for note in notes:
        write(Text(f"{note}\n", "red" if note.startswith("!") else "dim"))


def _show_comparison(comparison: Comparison) -> None:
    write("\n")
    _write_rows(comparison_rows(comparison.changes))
    for note in comparison_notes(comparison.changes, comparison.left_out):
        write(Text(f"{note}\n", "dim"))


def _write_rows(rows: list[tuple[str, ...]]) -> None:
    head, *rest = rows
    write(table([name.upper() for name in head], rest, lambda _, cell: _COLOURS.get(cell, "")))


def _threshold(text: str) -> _Threshold:
    name, equals, least = text.rpartition("=")
    variant, slash, scorer = name.rpartition("/")
    try:
        return _Threshold(scorer or name, variant if slash else None, float(least if equals else "nothing"))
    except ValueError:
        raise ConfigurationError(f"--fail-under {text!r}: write SCORER=MEAN, such as exact=0.9") from None


def _check(thresholds: list[_Threshold], made: Experiment) -> None:
    """Validate scorer and variant names before spending money on model calls."""
    for given in thresholds:
        scorers = [scorer.name for scorer in made.scorers]
        if given.scorer not in scorers:
            raise ConfigurationError(f"--fail-under {given.scorer}: the scorers are {', '.join(scorers)}")
        if given.variant is not None and given.variant not in made.variants:
            raise ConfigurationError(f"--fail-under {given.variant}/: the variants are {', '.join(made.variants)}")


def _missed(thresholds: list[_Threshold], report: Report) -> Iterator[str]:
    """Yield error messages for means that are missing or too low."""
    for scorer, variant, least in thresholds:
        for name in [variant] if variant is not None else report.variants:
            try:
                mean = report.of(name).mean(scorer)
            except ScoreMissing as error:
                yield f"{scorer} of {name}: {error}"
                continue
            if mean < least:
                yield f"{scorer} of {name} is {number(mean)}, and should be at least {number(least)}"
