"""Tests for statistics, failures and output formats of reports."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typing_extensions import override

from rxloop import ConfigurationError, Usage
from rxloop.errors import ScoreMissing
from rxloop.evals import Case, Report, Score, Trial, experiment, score
from rxloop.evals.trials import Measure
from support.capitals import CASES, agent, make_capital_model

HOSTILE = "<script>alert(1)</script> & \x1b[31m\u202e [red]x[/red] \"'"


def trial(case: str = "a", variant: str = "v", repeat: int = 1, error: str | None = None, **scores: Any) -> Trial:
    return Trial(
        variant=variant,
        case=case,
        repeat=repeat,
        task_id=f"{variant}-{case}-{repeat}",
        state="completed" if error is None else "failed",
        error=error,
        usage=Usage(input_tokens=10, output_tokens=1),
        scores={name: value if isinstance(value, Score) else Score(value=value) for name, value in scores.items()},
    )


def report(*trials: Trial, lower: tuple[str, ...] = ()) -> Report:
    names = dict.fromkeys(name for each in trials for name in each.scores)
    return Report(
        name="r",
        created=0,
        planned=len(trials),
        measures=[Measure(name=name, better="lower" if name in lower else "higher") for name in names],
        variants=[*dict.fromkeys(each.variant for each in trials)],
        trials=[*trials],
    )


def test_mean_averages_repeats_of_a_case_first() -> None:
    result = report(trial("a", s=1), trial("a", repeat=2, s=0), trial("b", s=1))
    assert result.by_case("s") == {"a": 0.5, "b": 1}
    assert result.mean("s") == 0.75


def test_interval_is_computed_over_cases() -> None:
    repeats = [trial("a", repeat=repeat, s=repeat % 2 == 0) for repeat in range(1, 101)]
    assert report(*repeats).interval("s") == (0.5, 0.5)
    low, high = report(*(trial(str(number), s=number % 2 == 0) for number in range(100))).interval("s")
    assert 0.3 < low < 0.45
    assert 0.55 < high < 0.7


def test_mean_rejects_reports_with_several_variants() -> None:
    both = report(trial(s=1), trial(variant="w", s=0))
    with pytest.raises(ConfigurationError, match=r"report.of\('v'\)"):
        both.mean("s")
    assert both.of("w").mean("s") == 0
    with pytest.raises(ConfigurationError, match="unknown variant 'x', expected 'v', 'w'"):
        both.of("x")


def test_unknown_scorer_is_rejected_with_the_existing_names() -> None:
    for ask in (Report.mean, Report.interval, Report.labels):
        with pytest.raises(ConfigurationError, match="unknown scorer 'x', expected s"):
            ask(report(trial(s=1)), "x")


def test_mean_and_interval_raise_when_a_scorer_failed() -> None:
    result = report(trial("a", s=1), trial("b", s=Score(error="ValueError: x")))
    for ask in (result.mean, result.interval):
        with pytest.raises(ScoreMissing, match="'s' failed for 1 of 2 trials"):
            ask("s")
    assert result.by_case("s") == {"a": 1}
    assert [each.case for each in result.failures] == ["b"]
    assert result.failures[0].reasons == ["s: ValueError: x"]


def test_mean_raises_when_a_scorer_never_applied() -> None:
    empty = report(trial(s=1)).model_copy(update={"trials": [trial()]})
    with pytest.raises(ScoreMissing, match="applied to none of 1 trials"):
        empty.mean("s")


def test_labels_are_counted_and_mean_rejects_them() -> None:
    result = report(trial("a", t="kind"), trial("b", t="kind"), trial("c", t=False, error="broken"))
    assert result.labels("t") == {"kind": 2, "(none)": 1}
    with pytest.raises(ConfigurationError, match="returns labels"):
        result.mean("t")


def test_tokens_of_judges_are_counted_separately() -> None:
    judged = Score(value=True, usage=Usage(input_tokens=5))
    result = report(trial("a", j=judged), trial("b", j=judged))
    assert result.usage == Usage(input_tokens=20, output_tokens=2)
    assert result.judging == Usage(input_tokens=10)


async def make_hostile_report() -> Report:
    """Return a report with markup and control characters in every string."""

    def label(result: Any) -> Score:
        return Score(value=HOSTILE, reason=HOSTILE)

    def broken(result: Any) -> bool:
        raise ValueError(HOSTILE)

    cases = [Case(f"{HOSTILE} Norway?", HOSTILE, id="<b>\u202d", metadata={"x": HOSTILE})]
    variants = {"<i>[bold]": agent(make_capital_model(Norway=HOSTILE)), "fails": agent(make_capital_model())}
    return await experiment(cases, variants, [label, broken, score.exact()], name="<u>").run()


async def test_report_json_round_trip() -> None:
    for result in (
        await make_hostile_report(),
        await experiment(CASES, agent(), [score.exact(), score.seconds()], repeats=2).run(),
    ):
        assert Report.from_json(result.to_json()) == result
        assert json.loads(result.to_json())["version"] == 1


@pytest.mark.parametrize("data", [b"{}", "[]", b"nothing", b'{"version": 2}'])
def test_from_json_rejects_other_data(data: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a report"):
        Report.from_json(data)


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


async def test_html_page_escapes_hostile_strings_and_loads_nothing() -> None:
    page = (await make_hostile_report()).to_html()
    read = Tags(page)
    assert not read.tags & {"script", "b\u202d", "i", "u", "img", "iframe", "a"}
    assert not read.attributes & {"src", "href", "onclick", "onload"}
    assert "<script>alert(1)</script>" in read.text
    assert "default-src 'none'" in page
    assert not {"\x1b", "\u202e", "\u202d"} & set(page)


async def test_html_page_shows_inputs_answers_scores_and_failures() -> None:
    page = Tags((await make_hostile_report()).to_html()).text
    for content in ("is not on the map", "label", "exact: yes", "broken: error", "Norway?", "tokens in"):
        assert content in page


@pytest.mark.parametrize("output", ["str", "rich"])
async def test_terminal_output_escapes_hostile_strings(output: str) -> None:
    result = await make_hostile_report()
    if output == "str":
        text = str(result)
    else:
        console = Console(file=StringIO(), width=500, force_terminal=True, color_system=None)
        console.print(result)
        text = str(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]
    assert not {"\x1b", "\u202e", "\u202d"} & set(text)
    assert "[bold]" in text
    assert "[red]x[/red]" in text


async def test_table_has_a_column_per_variant_and_lists_failures() -> None:
    def label(result: Any) -> str:
        return "short" if len(result.content) < 5 else "long"

    variants = {"good": agent(), "half": agent(make_capital_model("Norway", "Fiji"))}
    text = str(await experiment(CASES, variants, [score.exact(), label], name="capitals").run())
    rows = [line.split("   ") for line in text.splitlines()]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells["capitals: 8 of 8 trials, 4 cases"] == []
    assert cells[""] == ["good", "half"]
    assert cells["exact"] == ["1 [1, 1]", "0.5 [0, 1]"]
    assert cells["label"] == ["short 2, long 2", "short 2, (none) 2"]
    assert cells["no answer"] == ["0", "2"]
    assert "! half, Sweden: " in text


def test_table_lists_the_first_failures_and_counts_the_others() -> None:
    text = str(report(*(trial(str(number), error=f"broken {number}", s=False) for number in range(25))))
    assert "! v, 9: broken 9" in text
    assert "! v, 10" not in text
    assert "! and 15 more failures" in text


def test_mean_omits_unanswered_runs_when_lower_is_better() -> None:
    some = trial("b", error="broken", s=Score(reason="no answer: broken"))
    assert report(trial("a", s=3), some, lower=("s",)).mean("s") == 3
    assert "3 [3, 3], 1 omitted" in str(report(trial("a", s=3), some, lower=("s",)))
    with pytest.raises(ScoreMissing, match="none of 1 runs has an answer"):
        report(some, lower=("s",)).mean("s")
    assert "-, 1 omitted" in str(report(some, lower=("s",)))
    assert "s: none" in report(some, lower=("s",)).to_html()


def test_table_counts_errors_of_scorers() -> None:
    text = str(report(trial("a", s=1, t=Score(error="x")), trial("b", s=Score(error="x"), t=Score(error="x"))))
    assert "1 [1, 1], 1 error" in text
    assert "-, 2 errors" in text
