"""Scorers: what may be one, and what becomes of what it gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import reactivex.operators as rx

from rxloop import ConfigurationError, Result, Usage, op
from rxloop.errors import ScoreMissing
from rxloop.evals import Case, Report, Score, Scorer, experiment, score
from support.capitals import CASES, agent, lookup, make_capital_model, make_lookup_model


async def report_of(*scorers: Any, cases: Any = CASES[:1], **options: Any) -> Report:
    return await experiment(cases, agent(**options), scorers).run()


async def score_of(scorer: Any, **options: Any) -> Score | None:
    [trial] = (await report_of(scorer, **options)).trials
    return next(iter(trial.scores.values()), None)


def short(result: Result[str]) -> bool:
    return len(result.content) < 10


async def slow(result: Result[str]) -> int:
    await asyncio.sleep(0)
    return len(result.content)


def right(case: Case, result: Result[str]) -> Score:
    return Score(value=0.5, reason=f"{case.expected} for {result.output}", usage=Usage(input_tokens=3))


async def label(case: Case, result: Result[str]) -> str:
    return "capital"


class Callable_:  # noqa: N801
    __name__ = "object"

    def __call__(self, result: Result[str], weight: float = 2.0) -> float:
        return weight


@pytest.mark.parametrize(
    ("scorer", "name", "expected"),
    [
        (short, "short", Score(value=True)),
        (slow, "slow", Score(value=4)),
        (right, "right", Score(value=0.5, reason="Oslo for Oslo", usage=Usage(input_tokens=3))),
        (label, "label", Score(value="capital")),
        (Scorer("length", lambda result: len(result.content)), "length", Score(value=4)),
    ],
)
async def test_a_function_is_a_scorer_under_its_name(scorer: Any, name: str, expected: Score) -> None:
    [trial] = (await report_of(scorer)).trials
    assert trial.scores == {name: expected}


async def test_a_default_of_a_function_is_not_taken_for_the_case() -> None:
    assert await score_of(Callable_()) == Score(value=2.0)


async def test_none_says_that_it_does_not_apply() -> None:
    report = await report_of(Scorer("norway", lambda case, result: True if case.id == "Norway" else None), cases=CASES)
    assert [trial.case for trial in report.trials if trial.scores] == ["Norway"]
    assert report.mean("norway") == 1


async def test_what_a_scorer_raises_is_a_value_and_loses_no_run() -> None:
    def broken(result: Result[str]) -> bool:
        raise ValueError(f"cannot read {result.content}")

    report = await report_of(broken, short)
    [trial] = report.trials
    assert trial.scores == {"broken": Score(error="ValueError: cannot read Oslo"), "short": Score(value=True)}
    assert report.failures == [trial]
    with pytest.raises(ScoreMissing, match="failed for 1 of 1 trials, the first time with ValueError: cannot read"):
        report.mean("broken")


@pytest.mark.parametrize("given", [float("nan"), float("inf"), [1], {"a": 1}])
async def test_a_value_that_has_no_mean_is_an_error(given: Any) -> None:
    found = await score_of(Scorer("odd", lambda result: given))
    assert found is not None
    assert found.value is None
    assert found.error is not None
    assert found.error.startswith("ConfigurationError: a scorer g")


async def test_a_run_without_an_answer_counts_zero_and_its_stream_is_scored() -> None:
    report = await report_of(short, score.steps(), model=make_capital_model())
    [trial] = report.trials
    assert trial.scores["short"].value is False
    assert trial.scores["short"].reason.startswith("no answer: ")
    assert trial.scores["steps"] == Score(value=1)
    assert report.mean("short") == 0


async def test_a_run_without_an_answer_has_no_value_where_lower_is_better() -> None:
    called: list[str] = []

    def length(result: Result[str]) -> int:
        called.append(result.content)
        return len(result.content)

    report = await report_of(Scorer("length", length, better="lower"), cases=CASES, model=make_capital_model("Norway"))
    assert called == ["Oslo"]
    assert report.mean("length") == 4
    missing = report.trials[1].scores["length"]
    assert (missing.value, missing.error) == (None, None)
    assert missing.reason.startswith("no answer: ")


async def test_the_last_value_of_a_view_is_the_score() -> None:
    view = score.view("tools", op.tool_calls(), rx.count())
    assert await score_of(view, model=make_lookup_model(), tools=[lookup]) == Score(value=1)


async def test_a_view_that_gives_nothing_or_fails_is_an_error() -> None:
    empty = await score_of(score.view("empty", op.tool_calls(), rx.map(lambda event: 1)))
    assert empty is not None
    assert "the view 'empty' gave nothing" in str(empty.error)
    failing = await score_of(score.view("failing", rx.map(lambda event: 1 / 0)))
    assert failing is not None
    assert "ZeroDivisionError" in str(failing.error)


async def test_a_stock_operator_on_every_durable_event_in_order() -> None:
    live = [event.kind async for event in agent().run(CASES[0].input) if event.durable]
    seen: list[str] = []

    def note(event: Any) -> None:
        seen.append(event.kind)

    await score_of(score.view("all", rx.do_action(note), rx.count()))
    assert seen == live


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Scorer("", short), "needs a name"),
        (lambda: experiment(CASES, agent(), [lambda result: True]), "needs a name"),
        (lambda: Scorer("x", short, better="more"), "better must be 'higher' or 'lower'"),  # pyright: ignore[reportArgumentType]
        (lambda: Scorer("x", lambda: True), "it gets"),
        (lambda: Scorer("x", lambda a, b, c: True), "it gets"),
        (lambda: Scorer("x", 7), "give a function"),  # pyright: ignore[reportArgumentType]
        (lambda: experiment(CASES, agent(), ["exact"]), "is not a scorer"),  # pyright: ignore[reportArgumentType]
        (lambda: experiment(CASES, agent(), [dict]), "is not a scorer"),
        (lambda: experiment(CASES, agent(), []), "needs a scorer"),
        (lambda: experiment(CASES, agent(), [short, short]), "two scorers are called 'short'"),
    ],
)
def test_what_is_no_scorer_is_refused_at_once(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()
