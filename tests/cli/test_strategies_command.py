"""Formats and errors of `rxloop strategies`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rxloop.cli.app import app
from rxloop.strategies import STRATEGIES
from rxloop.thinking import StrategyDefinition


def run_command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["strategies", *arguments])
    return done.exit_code, done.output


def test_all_strategies_are_listed_with_stages_and_purpose() -> None:
    code, output = run_command()
    assert code == 0
    flat = " ".join(output.split())
    for each in STRATEGIES.values():
        assert each.when in flat
        assert " > ".join(stage.name for stage in each.stages) in flat


def test_strategy_is_written_in_every_format() -> None:
    react = STRATEGIES["react"]
    assert run_command("react") == (0, react.describe())
    assert run_command("tree_of_thoughts", "--format", "mermaid") == (0, STRATEGIES["tree_of_thoughts"].to_mermaid())
    code, written = run_command("react", "--format", "json")
    assert (code, StrategyDefinition.from_json(written)) == (0, react)


def test_strategy_file_is_validated_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nstages:\n  draft: {next: answer}\n  answer: {}\n")
    code, output = run_command(str(file))
    assert (code, output.splitlines()[0]) == (0, "mine: Mine")
    file.write_text("name: mine\nstages:\n  draft: {next: nowhere}\n  answer: {}\n")
    code, output = run_command(str(file))
    assert code == 2
    assert "nowhere" in output


@pytest.mark.parametrize("name", ["magic", "none.json"])
def test_unknown_strategy_is_an_error(name: str) -> None:
    code, output = run_command(name)
    assert code == 2
    assert name in output
