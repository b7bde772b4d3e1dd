"""Option groups shared by several commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from rxloop.cli.options import expand_groups

Count = Annotated[int, typer.Option("--count", help="How many.")]


@dataclass(frozen=True)
class Numbers:
    """Group with two options and an internal field."""

    least: Annotated[int, typer.Option("--least")] = 1
    names: Annotated[list[str] | None, typer.Option("--name")] = None
    plain: str = "plain"


@dataclass(frozen=True)
class OtherNumbers(Numbers):
    """Subclass that renames an option."""

    least: Annotated[int, typer.Option("--at-least")] = 2


def command(first: Count = 3, *, numbers: Numbers, other: Annotated[bool, typer.Option("--other")] = False) -> None:
    """Print the values."""
    print(first, numbers, other)


def other_command(numbers: OtherNumbers) -> None:
    """Print the values."""
    print(numbers)


def test_command_receives_a_group_with_the_values_of_its_options() -> None:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(expand_groups(command))
    done = CliRunner().invoke(app, ["--name", "a", "--other", "--name", "b"])
    assert done.output == "3 Numbers(least=1, names=['a', 'b'], plain='plain') True\n"
    text = CliRunner().invoke(app, ["--help"]).output
    positions = [text.index(option) for option in ("--count", "--least", "--name", "--other")]
    assert positions == sorted(positions)
    assert "--plain" not in text


def test_group_replaces_an_inherited_option() -> None:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(expand_groups(other_command))
    assert CliRunner().invoke(app, []).output == "OtherNumbers(least=2, names=None, plain='plain')\n"
    assert CliRunner().invoke(app, ["--at-least", "5"]).output.startswith("OtherNumbers(least=5")
    assert CliRunner().invoke(app, ["--least", "5"]).exit_code == 2
