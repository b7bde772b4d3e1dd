"""A report as one HTML page that opens in any browser and loads nothing. There is no script in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from string import Template

import orjson

from rxloop.runtime.experiments.scorer import Score
from rxloop.runtime.experiments.table import number, report_notes, report_rows
from rxloop.runtime.experiments.trials import Trial, Trials
from rxloop.thoughts.drawing import visible

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


def page(report: Trials) -> str:
    """Write the page: the table of the report, and under each case its trials."""
    first, *notes = report_notes(report)
    head, *rows = report_rows(report)
    places = {trial.case: place for place, trial in reversed([*enumerate(report.trials)])}
    trials = sorted(report.trials, key=lambda trial: places[trial.case])
    return _PAGE.substitute(
        title=_text(report.name),
        about=_text(first),
        rows="\n".join([_row("th", head), *(_row("td", row) for row in rows)]),
        failures="\n".join(f'<p class="bad">{_text(note)}</p>' for note in notes),
        cases="\n".join(_case([*group]) for _, group in groupby(trials, key=lambda trial: trial.case)),
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _case(trials: Sequence[Trial]) -> str:
    first = trials[0]
    known = [("asked", first.input), ("expected", first.expected)]
    facts = "".join(f"<dt>{name}</dt><dd><pre>{_value(value)}</pre></dd>" for name, value in known if value is not None)
    return f"<h2>{_text(first.case)}</h2>\n<dl>{facts}</dl>\n" + "\n".join(map(_trial, trials))


def _trial(trial: Trial) -> str:
    several = f" #{trial.repeat}" if trial.repeat > 1 else ""
    marks = "".join(_mark(name, score) for name, score in trial.scores.items())
    shown = " open" if trial.failed else ""
    return (
        f"<details{shown}><summary><b>{_text(trial.variant)}{several}</b>{marks}</summary>"
        f"<dl>{''.join(_facts(trial))}</dl></details>"
    )


def _facts(trial: Trial) -> Iterator[str]:
    yield f"<dt>answer</dt><dd><pre>{_text(trial.content)}</pre></dd>"
    for reason in trial.reasons:
        yield f'<dt>failed</dt><dd><pre class="bad">{_text(reason)}</pre></dd>'
    for name, score in trial.scores.items():
        if score.reason:
            yield f"<dt>{_text(name)}</dt><dd><pre>{_text(score.reason)}</pre></dd>"
    took = f"{trial.usage.input_tokens:,} tokens in, {trial.usage.output_tokens:,} out, {trial.seconds:.1f} s"
    yield f"<dt>run</dt><dd>{_text(trial.task_id)}, {_text(trial.state)}, {took}</dd>"


def _mark(name: str, score: Score) -> str:
    value = score.value
    if score.error is not None or value is None:
        kind, text = "bad", "error" if score.error is not None else "none"
    elif isinstance(value, bool):
        kind, text = ("good", "yes") if value else ("bad", "no")
    else:
        kind, text = "", value if isinstance(value, str) else number(value)
    return f'<span class="{kind}">{_text(name)}: {_text(text)}</span>'


def _value(value: object) -> str:
    return _text(value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _text(text: str) -> str:
    """A text as it stands on the page: no markup, and nothing that turns the direction of writing."""
    return escape(visible(text))
