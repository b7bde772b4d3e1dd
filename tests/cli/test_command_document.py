"""Command lines in docs/command.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rxloop.cli.app import app
from rxloop.cli.commands import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs/command.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL))
LINES = re.findall(r"(?:^|\| )rxloop (.*)$", BLOCKS, re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_documented_command_line_is_valid(line: str) -> None:
    name, *arguments = shlex.split(re.sub(r" [<>] \S+$", "", line))
    command: Any = get_command(app)
    # Only parse the line, which fails for unknown options and invalid values.
    command.get_command(None, name).make_context(name, arguments)


def test_every_command_is_documented() -> None:
    assert {line.split()[0] for line in LINES} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_table_repeats_the_first_line_of_each_help_text(name: str) -> None:
    command: Any = get_command(app)
    help_text = command.get_command(None, name).help
    assert COMMANDS[name].help == help_text.splitlines()[0]
