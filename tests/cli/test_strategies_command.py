"""`rxloop strategies`: lists, draws and writes strategies."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rxloop.cli.app import app
from rxloop.strategies import STRATEGIES
from rxloop.thinking import StrategyDefinition


def rxloop(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["strategies", *arguments])
    return done.exit_code, done.output


def test_all_nine_are_listed_with_their_stages_and_when_to_use_them() -> None:
    code, said = rxloop()
    assert code == 0
    flat = " ".join(said.split())
    for each in STRATEGIES.values():
        assert each.when in flat
        assert " > ".join(stage.name for stage in each.stages) in flat


def test_one_is_described_drawn_or_written() -> None:
    react = STRATEGIES["react"]
    assert rxloop("react") == (0, react.describe())
    assert rxloop("tree_of_thoughts", "--format", "mermaid") == (0, STRATEGIES["tree_of_thoughts"].to_mermaid())
    code, written = rxloop("react", "--format", "json")
    assert (code, StrategyDefinition.from_json(written)) == (0, react)


def test_a_file_of_ones_own_is_checked_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nstages:\n  draft: {next: answer}\n  answer: {}\n")
    code, said = rxloop(str(file))
    assert (code, said.splitlines()[0]) == (0, "mine: Mine")
    file.write_text("name: mine\nstages:\n  draft: {next: nowhere}\n  answer: {}\n")
    code, said = rxloop(str(file))
    assert code == 2
    assert "nowhere" in said


@pytest.mark.parametrize("name", ["magic", "none.json"])
def test_what_is_no_strategy_is_an_error_that_says_so(name: str) -> None:
    code, said = rxloop(name)
    assert code == 2
    assert name in said
