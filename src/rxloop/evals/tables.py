"""Tables and HTML page for a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from string import Template
from typing import TYPE_CHECKING

import orjson

from rxloop.errors import ConfigurationError
from rxloop.evals.scorer import Score
from rxloop.evals.trials import Change, Trial, Trials, bootstrap
from rxloop.support.text import to_one_line, to_visible

if TYPE_CHECKING:
    from rich.console import Group

_MAX_LISTED_CASES = 10
"""Maximum number of failures, and of worse cases for each scorer."""

_GAP = 3

Rows = list[tuple[str, ...]]
"""Table rows, starting with the header."""


def make_report_rows(report: Trials) -> Rows:
    """Return a table with a row for each scorer and a column for each variant."""
    head = ("", *(_to_line(variant) for variant in report.variants))
    parts = [report.of(variant) for variant in report.variants]
    rows: Rows = [(_to_line(each.name), *(_format_cell(part, each.name) for part in parts)) for each in report.measures]
    failed = tuple(str(sum(trial.error is not None for trial in part.trials)) for part in parts)
    return [head, *rows, ("no answer", *failed), ("tokens used", *(f"{part.usage.total_tokens:,}" for part in parts))]


def list_report_notes(report: Trials) -> Iterator[str]:
    """Yield lines with details that are not in the table."""
    cases = len({trial.case for trial in report.trials})
    yield f"{_to_line(report.name)}: {len(report.trials)} of {report.planned} trials, {_pluralize(cases, 'case')}"
    if report.judging.total_tokens:
        yield f"tokens used by judges: {report.judging.total_tokens:,}"
    failures = report.failures
    for trial in failures[:_MAX_LISTED_CASES]:
        repeat = f" #{trial.repeat}" if trial.repeat > 1 else ""
        label = f"{_to_line(trial.variant)}, {_to_line(trial.case)}{repeat}"
        yield f"! {label}: {_to_line('; '.join(trial.reasons), 200)}"
    if len(failures) > _MAX_LISTED_CASES:
        yield f"! and {len(failures) - _MAX_LISTED_CASES} more failures"


def make_comparison_rows(changes: Sequence[Change]) -> Rows:
    """Return a table with a row for each scorer and variant."""
    rows: Rows = [("", "before", "after", "difference", "")]
    for change in changes:
        low, high = change.interval
        difference = f"{change.difference:+.3g} [{low:+.3g}, {high:+.3g}]"
        means = format_number(change.before), format_number(change.after)
        rows.append((_format_name(change), *means, difference, change.verdict))
    return rows


def list_comparison_notes(changes: Sequence[Change], left_out: Sequence[str]) -> Iterator[str]:
    """Yield lines with worse cases, and with reasons why something could not be compared.

    Cases are omitted for scorers of cost, where the mean is sufficient and every second case is slightly worse.
    """
    for change in (each for each in changes if each.better == "higher"):
        for case in change.regressions[:_MAX_LISTED_CASES]:
            means = f"{format_number(case.before)} > {format_number(case.after)}"
            yield f"- {_format_name(change)}, {_to_line(case.case)}: {means}"
        if len(change.regressions) > _MAX_LISTED_CASES:
            yield f"- {_format_name(change)}: and {len(change.regressions) - _MAX_LISTED_CASES} more cases are worse"
    for reason in left_out:
        yield f"! not compared: {_to_line(reason, 200)}"


def format_report(report: Trials) -> str:
    """Format a report using plain text."""
    first, *rest = list_report_notes(report)
    return "\n".join([first, *align_rows(make_report_rows(report)), *rest])


def format_comparison(changes: Sequence[Change], left_out: Sequence[str]) -> str:
    """Format a comparison using plain text."""
    return "\n".join([*align_rows(make_comparison_rows(changes)), *list_comparison_notes(changes, left_out)])


def render_report(report: Trials) -> Group:
    """Return a report as a rich renderable."""
    first, *rest = list_report_notes(report)
    return _render(make_report_rows(report), [first], rest)


def render_comparison(changes: Sequence[Change], left_out: Sequence[str]) -> Group:
    """Return a comparison as a rich renderable."""
    return _render(make_comparison_rows(changes), [], [*list_comparison_notes(changes, left_out)])


def _render(rows: Rows, above: Sequence[str], below: Sequence[str]) -> Group:
    # rich is optional, but installed if it is used for printing.
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colours = {"better": "green", "worse": "bold red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, name in enumerate(rows[0]):
        table.add_column(Text(name), justify="left" if column == 0 else "right")
    for row in rows[1:]:
        table.add_row(*(Text(cell, colours.get(cell, "")) for cell in row))
    return Group(*(Text(line, "bold") for line in above), table, *(Text(line, "red") for line in below))


def align_rows(rows: Rows) -> list[str]:
    """Format rows as aligned lines."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [(" " * _GAP).join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def format_number(value: float) -> str:
    """Format a number with three significant digits, or without decimals from 1,000."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _format_cell(report: Trials, name: str) -> str:
    """Format a scorer's statistics: mean and interval, or label counts, then errors and omitted runs."""
    scores = [trial.scores[name] for trial in report.trials if name in trial.scores]
    errors = sum(score.error is not None for score in scores)
    omitted = sum(score.error is None and score.value is None for score in scores)
    failed = (f", {_pluralize(errors, 'error')}" if errors else "") + (f", {omitted} omitted" if omitted else "")
    try:
        values = [*report.by_case(name).values()]
    except ConfigurationError:
        counts = report.labels(name).most_common()
        return ", ".join(f"{_to_line(label)} {count}" for label, count in counts)
    if not values:
        return f"-{failed}"
    low, high = bootstrap(values)
    return f"{format_number(sum(values) / len(values))} [{format_number(low)}, {format_number(high)}]{failed}"


def _format_name(change: Change) -> str:
    before, after = change.variant
    variant = before if before == after else f"{before} > {after}"
    return f"{_to_line(change.scorer)} ({_to_line(variant)})"


def _to_line(text: str, width: int = 60) -> str:
    """Return a string as one line, with control characters made visible."""
    return to_visible(to_one_line(text, width))


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1d2430; --quiet: #667; --paper: #fafafa; --box: #fff; --line: #d4d7df;
  --bad: #b3261e; --good: #1f7a45; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaf0; --quiet: #99a; --paper: #15181f; --box: #1e232d; --line: #3a404c; --bad: #ff8a80;
    --good: #6fd39b; } }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr { border-bottom: 1px solid var(--line); }
details { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: .3rem .8rem;
  margin: .4rem 0; }
summary { cursor: pointer; } summary b, summary span { margin-right: .8rem; } summary span { color: var(--quiet); }
pre { white-space: pre-wrap; font: inherit; margin: .3rem 0; } .bad, summary .bad { color: var(--bad); }
summary .good { color: var(--good); } dt { color: var(--quiet); } dd { margin: 0 0 .5rem 0; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$about</p>
<table>
$rows
</table>
$failures
$cases
</body>
</html>
""")


def format_page(report: Trials) -> str:
    """Return a page with the report's table, and all trials for each case."""
    first, *notes = list_report_notes(report)
    head, *rows = make_report_rows(report)
    positions = {trial.case: position for position, trial in reversed([*enumerate(report.trials)])}
    trials = sorted(report.trials, key=lambda trial: positions[trial.case])
    return _PAGE.substitute(
        title=_escape(report.name),
        about=_escape(first),
        rows="\n".join([_format_row("th", head), *(_format_row("td", row) for row in rows)]),
        failures="\n".join(f'<p class="bad">{_escape(note)}</p>' for note in notes),
        cases="\n".join(_format_case([*group]) for _, group in groupby(trials, key=lambda trial: trial.case)),
    )


def _format_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _format_case(trials: Sequence[Trial]) -> str:
    first = trials[0]
    items = [("asked", first.input), ("expected", first.expected)]
    facts = "".join(
        f"<dt>{name}</dt><dd><pre>{_format(value)}</pre></dd>" for name, value in items if value is not None
    )
    return f"<h2>{_escape(first.case)}</h2>\n<dl>{facts}</dl>\n" + "\n".join(map(_format_trial, trials))


def _format_trial(trial: Trial) -> str:
    repeat = f" #{trial.repeat}" if trial.repeat > 1 else ""
    marks = "".join(_format_score(name, score) for name, score in trial.scores.items())
    state = " open" if trial.failed else ""
    return (
        f"<details{state}><summary><b>{_escape(trial.variant)}{repeat}</b>{marks}</summary>"
        f"<dl>{''.join(_list_facts(trial))}</dl></details>"
    )


def _list_facts(trial: Trial) -> Iterator[str]:
    yield f"<dt>answer</dt><dd><pre>{_escape(trial.content)}</pre></dd>"
    for reason in trial.reasons:
        yield f'<dt>failed</dt><dd><pre class="bad">{_escape(reason)}</pre></dd>'
    for name, score in trial.scores.items():
        if score.reason:
            yield f"<dt>{_escape(name)}</dt><dd><pre>{_escape(score.reason)}</pre></dd>"
    usage_text = f"{trial.usage.input_tokens:,} tokens in, {trial.usage.output_tokens:,} out, {trial.seconds:.1f} s"
    yield f"<dt>run</dt><dd>{_escape(trial.task_id)}, {_escape(trial.state)}, {usage_text}</dd>"


def _format_score(name: str, score: Score) -> str:
    value = score.value
    if score.error is not None or value is None:
        kind, text = "bad", "error" if score.error is not None else "none"
    elif isinstance(value, bool):
        kind, text = ("good", "yes") if value else ("bad", "no")
    else:
        kind, text = "", value if isinstance(value, str) else format_number(value)
    return f'<span class="{kind}">{_escape(name)}: {_escape(text)}</span>'


def _format(value: object) -> str:
    return _escape(value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _escape(text: str) -> str:
    """Escape text for HTML, and make control characters visible."""
    return escape(to_visible(text))
