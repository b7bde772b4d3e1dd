"""How far a batch is: counted, and drawn."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass

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


def test_a_tally_after_each_outcome() -> None:
    found: list[Tally] = []
    rx.from_iterable(OUTCOMES).pipe(op.tally(Price(input=2, output=10))).subscribe(found.append)
    assert [(tally.done, tally.failed) for tally in found] == [(1, 0), (2, 1), (3, 1)]
    assert found[-1].usage.output_tokens == 1_500
    assert found[-1].dollars == pytest.approx(3 * 0.007)
    assert str(found[-1]) == "2 answered, 1 failed, 4,500 tokens, $0.02"


def test_the_tokens_of_a_run_are_not_taken_for_one_long_request() -> None:
    found: list[Tally] = []
    price = Price(input=2, output=10, above=(1, Price(input=100, output=100)))
    rx.from_iterable(OUTCOMES).pipe(op.tally(price)).subscribe(found.append)
    assert found[-1].dollars == pytest.approx(3 * 0.007)


def test_without_a_price_there_is_no_cost() -> None:
    found: list[Tally] = []
    rx.from_iterable(OUTCOMES[:1]).pipe(op.tally()).subscribe(found.append)
    assert str(found[0]) == "1 answered, 1,500 tokens"


async def test_it_counts_the_outcomes_of_a_batch() -> None:
    agent = Agent(ScriptedModel(*[turn("a", usage=Usage(output_tokens=3))] * 4))
    last = await agent.map(["a"] * 4).pipe(op.tally())
    assert str(last) == "4 answered, 12 tokens"


def drawn(*, terminal: bool, outcomes: list[Outcome]) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100, color_system=None)
    seen: list[Outcome] = []
    bar = op.progress(3, label="files", price=Price(2, 10), console=console)
    rx.from_iterable(outcomes).pipe(bar).subscribe(seen.append)
    assert seen == outcomes
    return screen.getvalue()


def test_a_terminal_shows_a_bar_with_what_has_come_so_far() -> None:
    shown = drawn(terminal=True, outcomes=OUTCOMES)
    assert "files" in shown
    assert "3/3" in shown
    assert "2 answered, 1 failed, 4,500 tokens, $0.02" in shown


def test_a_pipe_gets_nothing() -> None:
    assert drawn(terminal=False, outcomes=OUTCOMES) == ""


def test_a_bar_that_is_disposed_ends_and_gives_the_cursor_back() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    rx.from_iterable(OUTCOMES).pipe(op.progress(console=console), ops.take(1)).subscribe()
    assert screen.getvalue().endswith("\x1b[?25h")


def test_without_rich_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rxloop\[cli\]'"):
        op.progress()
