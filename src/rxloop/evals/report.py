"""Report and comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError
from typing_extensions import override

from rxloop.errors import ConfigurationError
from rxloop.evals.tables import format_comparison, format_page, format_report, render_comparison, render_report
from rxloop.evals.trials import CaseChange, Change, Interval, Measure, Trial, Trials, Verdict, bootstrap

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable


class Report(Trials):
    """Trials of an experiment, with statistics and output formats.

    `str` returns a table, and `rich.print` adds colours.
    """

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Parse a report created by `to_json`.

        Raises:
            ConfigurationError: Invalid report.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ConfigurationError(f"data must be a report of an experiment: {error.errors()[0]['msg']}") from error

    def to_html(self) -> str:
        """Return a self-contained HTML page. Output from models is escaped."""
        return format_page(self)

    @override
    def __str__(self) -> str:
        return format_report(self)

    def __rich__(self) -> ConsoleRenderable:
        return render_report(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes between two reports. `str` returns a table, and `rich.print` adds colours."""

    before: str
    after: str
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]
    """Reasons for omissions from the comparison."""

    @property
    def worse(self) -> list[Change]:
        """Changes with the verdict `worse`."""
        return [change for change in self.changes if change.verdict == "worse"]

    @override
    def __str__(self) -> str:
        return format_comparison(self.changes, self.left_out)

    def __rich__(self) -> ConsoleRenderable:
        return render_comparison(self.changes, self.left_out)


def compare(before: Report, after: Report, *, level: float = 0.95) -> Comparison:
    """Compare two reports by scorer and case.

    Variants are paired by name, unless each report has only one, as in `compare(report.of("small"),
    report.of("large"))`. Cases are paired by id. Cases with another input or expected answer are omitted, and so are
    labels and scorers that only one report has. If lower is better, a case is also omitted if its fraction of
    unanswered runs has changed, because a failed run only seems cheaper. `left_out` lists everything that was omitted.

    Args:
        before: Baseline report.
        after: Report to compare with the baseline.
        level: Confidence level of the intervals.

    Raises:
        ConfigurationError: The reports have no common variant or case, or the level is not between 0 and 1.
    """
    left_out: list[str] = []
    changes: list[Change] = []
    for old, new in _pair_variants(before, after, left_out):
        cases = _find_shared_cases(old, new, left_out)
        for measure in new.measures:
            change = _compare_scorer(measure, old, new, cases, level, left_out)
            if change is not None:
                changes.append(change)
    removed = {measure.name for measure in before.measures} - {measure.name for measure in after.measures}
    left_out += [f"scorer {name!r}: only before" for name in sorted(removed)]
    return Comparison(before.name, after.name, tuple(changes), tuple(dict.fromkeys(left_out)))


def _pair_variants(before: Report, after: Report, left_out: list[str]) -> Iterator[tuple[Report, Report]]:
    if len(before.variants) == len(after.variants) == 1:
        yield before, after
        return
    shared = [variant for variant in after.variants if variant in before.variants]
    if not shared:
        raise ConfigurationError(
            f"the reports have no common variant, got {', '.join(before.variants)} and {', '.join(after.variants)}; "
            "use compare(before.of(...), after.of(...))"
        )
    left_out += [f"variant {name!r}: only before" for name in before.variants if name not in shared]
    left_out += [f"variant {name!r}: only after" for name in after.variants if name not in shared]
    yield from ((before.of(variant), after.of(variant)) for variant in shared)


def _find_shared_cases(before: Report, after: Report, left_out: list[str]) -> set[str]:
    old, new = _index_by_case(before.trials), _index_by_case(after.trials)
    shared = {case for case in old if case in new and _has_same_question(old[case], new[case])}
    left_out += [f"case {case!r}: only before" for case in old if case not in new]
    left_out += [f"case {case!r}: only after" for case in new if case not in old]
    left_out += [
        f"case {case!r}: different input or expected answer" for case in old if case in new and case not in shared
    ]
    if not shared:
        raise ConfigurationError("the reports have no common case")
    return shared


def _index_by_case(trials: Sequence[Trial]) -> dict[str, Trial]:
    return {trial.case: trial for trial in trials}


def _has_same_question(old: Trial, new: Trial) -> bool:
    return (old.input, old.expected) == (new.input, new.expected)


def _compare_scorer(
    measure: Measure, before: Report, after: Report, cases: set[str], level: float, left_out: list[str]
) -> Change | None:
    name = measure.name
    if name not in {each.name for each in before.measures}:
        left_out.append(f"scorer {name!r}: only after")
        return None
    try:
        old, new = before.by_case(name), after.by_case(name)
    except ConfigurationError:
        left_out.append(f"scorer {name!r}: returns labels")
        return None
    if measure.better == "lower":
        cases = _drop_uneven_failures(name, before, after, cases, left_out)
    pairs = [CaseChange(case, old[case], new[case]) for case in old if case in cases and case in new]
    missing = len(cases) - len(pairs)
    if missing:
        left_out.append(f"scorer {name!r}: {missing} of {len(cases)} cases have no score before or after")
    if not pairs:
        return None
    sign = 1 if measure.better == "higher" else -1
    interval = bootstrap([pair.difference for pair in pairs], level)
    worse = [pair for pair in pairs if sign * pair.difference < 0]
    better = [pair for pair in pairs if sign * pair.difference > 0]
    return Change(
        scorer=name,
        better=measure.better,
        variant=(before.variants[0], after.variants[0]),
        cases=len(pairs),
        before=fmean(pair.before for pair in pairs),
        after=fmean(pair.after for pair in pairs),
        interval=interval,
        verdict=_decide_verdict(sign, interval, same=not worse and not better),
        regressions=tuple(sorted(worse, key=lambda pair: sign * pair.difference)),
        improvements=tuple(sorted(better, key=lambda pair: -sign * pair.difference)),
    )


def _drop_uneven_failures(name: str, before: Report, after: Report, cases: set[str], left_out: list[str]) -> set[str]:
    """Return cases that failed equally often in both reports, because failed runs would lower the mean cost."""
    old, new = _compute_failure_rates(before), _compute_failure_rates(after)
    matching = {case for case in cases if old[case] == new[case]}
    if matching != cases:
        left_out.append(
            f"scorer {name!r}: {len(cases) - len(matching)} of {len(cases)} cases have different numbers of unanswered "
            "runs"
        )
    return matching


def _compute_failure_rates(report: Report) -> dict[str, float]:
    """Return the fraction of runs without an answer for each case."""
    failed: dict[str, list[bool]] = {}
    for trial in report.trials:
        failed.setdefault(trial.case, []).append(trial.error is not None)
    return {case: fmean(each) for case, each in failed.items()}


def _decide_verdict(sign: int, interval: Interval, *, same: bool) -> Verdict:
    if same:
        return "same"
    if interval.low > 0 or interval.high < 0:
        return "better" if sign * interval.low > 0 else "worse"
    return "unclear"
