"""Counts and progress bars of batches."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from rich.console import Console

from rxloop import Agent, Price, Usage, op
from rxloop.errors import ConfigurationError
from rxloop.operators import Tally
from rxloop.testing import ScriptedModel, turn

USAGE = Usage(input_tokens=1_000, output_tokens=500)


@dataclass
class Outcome:
    usage: Usage = USAGE
    error: Exception | None = None


OUTCOMES = [Outcome(), Outcome(error=ValueError()), Outcome()]


def test_tally_is_emitted_after_each_outcome() -> None:
    tallies: list[Tally] = []
    rx.from_iterable(OUTCOMES).pipe(op.tally(Price(input=2, output=10))).subscribe(tallies.append)
    assert [(tally.done, tally.failed) for tally in tallies] == [(1, 0), (2, 1), (3, 1)]
    assert tallies[-1].usage.output_tokens == 1_500
    assert tallies[-1].dollars == pytest.approx(3 * 0.007)
    assert str(tallies[-1]) == "2 answered, 1 failed, 4,500 tokens, $0.02"


def test_tokens_of_a_run_are_not_priced_as_one_long_request() -> None:
    tallies: list[Tally] = []
    price = Price(input=2, output=10, above=(1, Price(input=100, output=100)))
    rx.from_iterable(OUTCOMES).pipe(op.tally(price)).subscribe(tallies.append)
    assert tallies[-1].dollars == pytest.approx(3 * 0.007)


def test_tally_has_no_cost_without_a_price() -> None:
    tallies: list[Tally] = []
    rx.from_iterable(OUTCOMES[:1]).pipe(op.tally()).subscribe(tallies.append)
    assert str(tallies[0]) == "1 answered, 1,500 tokens"


async def test_tally_counts_the_outcomes_of_a_batch() -> None:
    agent = Agent(ScriptedModel(*[turn("a", usage=Usage(output_tokens=3))] * 4))
    last = await agent.map(["a"] * 4).pipe(op.tally())
    assert str(last) == "4 answered, 12 tokens"


def draw_progress(*, terminal: bool, outcomes: list[Outcome]) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100, color_system=None)
    seen: list[Outcome] = []
    bar = op.progress(3, label="files", price=Price(2, 10), console=console)
    rx.from_iterable(outcomes).pipe(bar).subscribe(seen.append)
    assert seen == outcomes
    return screen.getvalue()


def test_terminal_shows_a_bar_with_the_current_counts() -> None:
    screen = draw_progress(terminal=True, outcomes=OUTCOMES)
    assert "files" in screen
    assert "3/3" in screen
    assert "2 answered, 1 failed, 4,500 tokens, $0.02" in screen


def test_pipe_shows_no_progress() -> None:
    assert draw_progress(terminal=False, outcomes=OUTCOMES) == ""


def test_disposed_bar_restores_the_cursor() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    rx.from_iterable(OUTCOMES).pipe(op.progress(console=console), ops.take(1)).subscribe()
    assert screen.getvalue().endswith("\x1b[?25h")


def test_error_names_the_extra_when_rich_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rxloop\[cli\]'"):
        op.progress()


def test_error_names_find_price_when_the_price_is_a_model() -> None:
    model: Any = "openai:gpt-5-mini"
    with pytest.raises(ConfigurationError, match=r"find_price.*got 'openai:gpt-5-mini'"):
        op.tally(model)
