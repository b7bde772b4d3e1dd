"""Tests for comparisons of two reports."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rxloop import ConfigurationError
from rxloop.evals import Report, Score, Trial, compare
from rxloop.evals.trials import Measure


def report(
    values: dict[str, Any], variant: str = "v", scorer: str = "s", better: Any = "higher", **fields: Any
) -> Report:
    trials = [
        Trial(
            variant=variant,
            case=case,
            task_id=case,
            state="completed",
            scores={scorer: value if isinstance(value, Score) else Score(value=value)},
            **fields,
        )
        for case, value in values.items()
    ]
    measures = [Measure(name=scorer, better=better)]
    return Report(name="r", created=0, planned=len(trials), measures=measures, variants=[variant], trials=trials)


def merge_reports(*reports: Report) -> Report:
    trials = [trial for each in reports for trial in each.trials]
    variants = [name for each in reports for name in each.variants]
    return reports[0].model_copy(update={"trials": trials, "variants": variants, "planned": len(trials)})


FINITE = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))
PAIRS = st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=12)


@settings(max_examples=20)
@given(PAIRS)
def test_compare_is_symmetric(pairs: list[tuple[float, float]]) -> None:
    old = report({str(index): before for index, (before, _) in enumerate(pairs)})
    new = report({str(index): after for index, (_, after) in enumerate(pairs)})
    [forth], [back] = compare(old, new).changes, compare(new, old).changes
    assert forth.difference == pytest.approx(-back.difference)
    assert forth.interval == (-back.interval.high, -back.interval.low)
    opposite = {"better": "worse", "worse": "better"}
    assert back.verdict == opposite.get(forth.verdict, forth.verdict)
    assert [each.case for each in forth.regressions] == [each.case for each in back.improvements]


@settings(max_examples=20)
@given(PAIRS)
def test_interval_contains_the_difference(pairs: list[tuple[float, float]]) -> None:
    old = report({str(index): before for index, (before, _) in enumerate(pairs)})
    new = report({str(index): after for index, (_, after) in enumerate(pairs)})
    [change] = compare(old, new).changes
    assert change.interval.low - 1e-9 <= change.difference <= change.interval.high + 1e-9


def test_equal_reports_have_the_verdict_same() -> None:
    values = {"a": True, "b": False}
    [change] = compare(report(values), report(values)).changes
    assert (change.verdict, change.difference, change.interval) == ("same", 0, (0, 0))
    assert change.regressions == change.improvements == ()


def test_paired_difference_is_found_when_intervals_overlap() -> None:
    before = {str(number): float(number) for number in range(30)}
    old, new = report(before), report({case: value + 0.5 for case, value in before.items()})
    [change] = compare(old, new).changes
    assert old.interval("s").high > new.interval("s").low
    assert change.verdict == "better"
    assert change.interval == (0.5, 0.5)


def test_two_worse_cases_have_the_verdict_unclear() -> None:
    old = report({str(number): True for number in range(10)})
    new = report({str(number): number > 1 for number in range(10)})
    [change] = compare(old, new).changes
    assert change.verdict == "unclear"
    assert [each.case for each in change.regressions] == ["0", "1"]


def test_lower_values_are_improvements_when_lower_is_better() -> None:
    old, new = report({"a": 3.0, "b": 2.0}, better="lower"), report({"a": 1.0, "b": 5.0}, better="lower")
    [change] = compare(old, new).changes
    assert [(each.case, each.difference) for each in change.regressions] == [("b", 3)]
    assert [each.case for each in change.improvements] == ["a"]
    [worse] = compare(report({"a": 1.0}, better="lower"), report({"a": 2.0}, better="lower")).worse
    assert worse.verdict == "worse"


def fail_cases(report: Report, *cases: str) -> Report:
    trials = [
        trial.model_copy(update={"error": "broken", "state": "failed"}) if trial.case in cases else trial
        for trial in report.trials
    ]
    return report.model_copy(update={"trials": trials})


def test_failures_are_not_improvements_when_lower_is_better() -> None:
    old = report({"a": 9.0, "b": 9.0, "c": 9.0}, better="lower")
    new = fail_cases(report({"a": 1.0, "b": 9.0, "c": 1.0}, better="lower"), "a", "c")
    comparison = compare(old, new)
    assert [(change.cases, change.verdict) for change in comparison.changes] == [(1, "same")]
    assert comparison.left_out == ("scorer 's': 2 of 3 cases have different numbers of unanswered runs",)
    assert compare(old, fail_cases(new, "a", "b", "c")).changes == ()
    assert compare(fail_cases(old, "a", "b", "c"), fail_cases(new, "a", "b", "c")).changes[0].cases == 3


def test_failures_count_as_zero_when_higher_is_better() -> None:
    [change] = compare(report({"a": 1}), fail_cases(report({"a": 0}), "a")).changes
    assert change.verdict == "worse"


def test_regressions_start_with_the_worst_case() -> None:
    old, new = report({"a": 5.0, "b": 5.0, "c": 5.0}), report({"a": 4.0, "b": 1.0, "c": 9.0})
    [change] = compare(old, new).changes
    assert [each.case for each in change.regressions] == ["b", "a"]


def test_cases_of_only_one_report_are_omitted_and_listed() -> None:
    old = report({"a": 1, "gone": 0, "x": Score(error="broken")})
    new = report({"a": 1, "new": 0, "x": 1})
    comparison = compare(old, new)
    assert comparison.changes[0].cases == 1
    assert comparison.left_out == (
        "case 'gone': only before",
        "case 'new': only after",
        "scorer 's': 1 of 2 cases have no score before or after",
    )


def test_case_with_another_input_is_omitted_and_listed() -> None:
    old, new = report({"a": 1, "b": 1}, input="x"), report({"a": 1, "b": 1}, input="x")
    new = new.model_copy(update={"trials": [new.trials[0].model_copy(update={"input": "y"}), new.trials[1]]})
    comparison = compare(old, new)
    assert comparison.changes[0].cases == 1
    assert comparison.left_out == ("case 'a': different input or expected answer",)


def test_labels_and_scorers_of_only_one_report_are_listed() -> None:
    assert compare(report({"a": "kind"}), report({"a": "rude"})).left_out == ("scorer 's': returns labels",)
    assert compare(report({"a": 1}), report({"a": 1}, scorer="t")).left_out == (
        "scorer 't': only after",
        "scorer 's': only before",
    )


def test_compare_pairs_variants_by_name_unless_each_report_has_one() -> None:
    old = merge_reports(report({"a": 1}, "x"), report({"a": 1}, "gone"))
    new = merge_reports(report({"a": 0}, "x"), report({"a": 0}, "new"))
    comparison = compare(old, new)
    assert [change.variant for change in comparison.changes] == [("x", "x")]
    assert comparison.left_out == ("variant 'gone': only before", "variant 'new': only after")
    [change] = compare(old.of("x"), new.of("new")).changes
    assert change.variant == ("x", "new")


def test_compare_rejects_reports_with_nothing_in_common() -> None:
    with pytest.raises(ConfigurationError, match="no common variant"):
        compare(merge_reports(report({"a": 1}, "x"), report({"a": 1}, "y")), report({"a": 1}, "z"))
    with pytest.raises(ConfigurationError, match="no common case"):
        compare(report({"a": 1}), report({"b": 1}))
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        compare(report({"a": 1}), report({"a": 1}), level=95)


def test_comparison_text_lists_worse_cases() -> None:
    old, new = report({"a": 1, "b\x1b": 1}), report({"a": 1, "b\x1b": 0, "c": 1})
    text = str(compare(old, new))
    assert "-0.5 [-1, +0]" in text
    assert "unclear" in text
    assert "- s (v), b: 1 > 0" in text
    assert "! not compared: case 'c': only after" in text
    assert "\x1b" not in text


def test_rich_output_contains_variants_and_verdict() -> None:
    console = Console(file=StringIO(), width=200)
    console.print(compare(report({"a": 1}, "x"), report({"a": 0}, "y")))
    text = str(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]
    assert "s (x > y)" in text
    assert "worse" in text


def test_comparison_text_omits_cases_when_lower_is_better() -> None:
    old, new = report({"a": 1.0}, better="lower"), report({"a": 2.0}, better="lower")
    assert "1 > 2" not in str(compare(old, new))
    assert compare(old, new).changes[0].regressions[0].difference == 1
