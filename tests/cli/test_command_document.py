"""The lines of docs/command.md are lines that the command takes."""

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
def test_the_command_takes_the_line(line: str) -> None:
    name, *arguments = shlex.split(re.sub(r" [<>] \S+$", "", line))
    command: Any = get_command(app)
    # Parsed and not run: an option that is not there is an error, and so is a value of a wrong kind.
    command.get_command(None, name).make_context(name, arguments)


def test_every_command_is_in_the_document() -> None:
    assert {line.split()[0] for line in LINES} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_all_commands_is_the_first_line_of_each(name: str) -> None:
    command: Any = get_command(app)
    said = command.get_command(None, name).help
    assert COMMANDS[name].help == said.splitlines()[0]
