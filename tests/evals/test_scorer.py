"""Tests for custom scorers and their return values."""

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


async def run_scorers(*scorers: Any, cases: Any = CASES[:1], **options: Any) -> Report:
    return await experiment(cases, agent(**options), scorers).run()


async def compute_score(scorer: Any, **options: Any) -> Score | None:
    [trial] = (await run_scorers(scorer, **options)).trials
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


class CallableScorer:
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
async def test_function_is_a_scorer_with_its_name(scorer: Any, name: str, expected: Score) -> None:
    [trial] = (await run_scorers(scorer)).trials
    assert trial.scores == {name: expected}


async def test_optional_parameter_does_not_receive_the_case() -> None:
    assert await compute_score(CallableScorer()) == Score(value=2.0)


async def test_scorer_that_returns_none_does_not_apply() -> None:
    report = await run_scorers(
        Scorer("norway", lambda case, result: True if case.id == "Norway" else None), cases=CASES
    )
    assert [trial.case for trial in report.trials if trial.scores] == ["Norway"]
    assert report.mean("norway") == 1


async def test_exception_of_a_scorer_is_recorded_in_its_score() -> None:
    def broken(result: Result[str]) -> bool:
        raise ValueError(f"cannot read {result.content}")

    report = await run_scorers(broken, short)
    [trial] = report.trials
    assert trial.scores == {"broken": Score(error="ValueError: cannot read Oslo"), "short": Score(value=True)}
    assert report.failures == [trial]
    with pytest.raises(ScoreMissing, match="failed for 1 of 1 trials, the first error is ValueError: cannot read"):
        report.mean("broken")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], {"a": 1}])
async def test_unsupported_value_is_an_error(value: Any) -> None:
    result = await compute_score(Scorer("odd", lambda result: value))
    assert result is not None
    assert result.value is None
    assert result.error is not None
    assert result.error.startswith("ConfigurationError: a scorer must return")


async def test_unanswered_run_counts_as_zero_and_its_events_are_scored() -> None:
    report = await run_scorers(short, score.steps(), model=make_capital_model())
    [trial] = report.trials
    assert trial.scores["short"].value is False
    assert trial.scores["short"].reason.startswith("no answer: ")
    assert trial.scores["steps"] == Score(value=1)
    assert report.mean("short") == 0


async def test_unanswered_run_has_no_value_when_lower_is_better() -> None:
    contents: list[str] = []

    def length(result: Result[str]) -> int:
        contents.append(result.content)
        return len(result.content)

    report = await run_scorers(
        Scorer("length", length, better="lower"), cases=CASES, model=make_capital_model("Norway")
    )
    assert contents == ["Oslo"]
    assert report.mean("length") == 4
    missing = report.trials[1].scores["length"]
    assert (missing.value, missing.error) == (None, None)
    assert missing.reason.startswith("no answer: ")


async def test_view_scorer_uses_the_last_value() -> None:
    view = score.view("tools", op.tool_calls(), rx.count())
    assert await compute_score(view, model=make_lookup_model(), tools=[lookup]) == Score(value=1)


async def test_view_scorer_without_value_or_with_exception_is_an_error() -> None:
    empty = await compute_score(score.view("empty", op.tool_calls(), rx.map(lambda event: 1)))
    assert empty is not None
    assert "view 'empty' must publish a value" in str(empty.error)
    failing = await compute_score(score.view("failing", rx.map(lambda event: 1 / 0)))
    assert failing is not None
    assert "ZeroDivisionError" in str(failing.error)


async def test_view_scorer_receives_all_durable_events_in_order() -> None:
    live = [event.kind async for event in agent().run(CASES[0].input) if event.durable]
    kinds: list[str] = []

    def note(event: Any) -> None:
        kinds.append(event.kind)

    await compute_score(score.view("all", rx.do_action(note), rx.count()))
    assert kinds == live


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scorer("", short), "requires a name"),
        (lambda: experiment(CASES, agent(), [lambda result: True]), "requires a name"),
        (lambda: Scorer("x", short, better="more"), "better must be 'higher' or 'lower'"),  # pyright: ignore[reportArgumentType]
        (lambda: Scorer("x", lambda: True), r"must accept \(result\) or \(case, result\)"),
        (lambda: Scorer("x", lambda a, b, c: True), r"must accept \(result\) or \(case, result\)"),
        (lambda: Scorer("x", 7), "must be a function"),  # pyright: ignore[reportArgumentType]
        (lambda: experiment(CASES, agent(), ["exact"]), "must be a Scorer or a function"),  # pyright: ignore[reportArgumentType]
        (lambda: experiment(CASES, agent(), [dict]), "must be a Scorer or a function"),
        (lambda: experiment(CASES, agent(), []), "scorers must not be empty"),
        (lambda: experiment(CASES, agent(), [short, short]), "scorer names must be unique, got 'short' twice"),
    ],
)
def test_invalid_scorers_are_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
