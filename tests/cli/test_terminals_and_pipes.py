"""All commands on a narrow terminal, and with pipes closed by the reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rxloop.cli.commands import COMMANDS
from support.cli_workspace import Workspace
from support.forked_commands import COLUMNS, Outcome, run_forked
from support.terminals import Screen

HELP = [f"{name} --help" for name in COMMANDS]
OUTPUTS = [
    "--help",
    "--version",
    "run '2 + 2'",
    "run '2 + 2' --json",
    "run '2 + 2' --quiet",
    "runs",
    "runs --json",
    "runs --grep 2",
    "show last",
    "show last --json",
    "replay last",
    "resume last",
    "diff last last",
    "graph last",
    "graph last --format html",
    "export last",
    "models",
    "models zai",
    "models --json",
    "keys path",
    "strategies",
    "strategies react",
    "protocol",
    "protocol task --json",
    "doctor",
    "completion bash",
    "completion zsh",
    "skill",
]
IMMEDIATE = [
    "--help",
    "run '2 + 2'",
    "run '2 + 2' --json",
    "runs",
    "show last --json",
    "export last",
    "models",
    "protocol",
    "doctor",
    "completion bash",
]
"""Commands with different kinds of output: help, answers, events, tables and scripts."""
DEMO = "demo"
"""The demo waits between events, imitating a model."""
CREATING = ["new made", "import runs.jsonl --db other.db", "map prompts.jsonl --out answers.jsonl"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, offline_url: str) -> Workspace:
    """Workspace with a recorded run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("recorded")
        patch.chdir(folder)
        workspace = Workspace(folder, offline_url)
        workspace.run("run", "Compare the weather in Oslo and Bergen. " * 5, "--tools", "kit:get_weather")
        Path("runs.jsonl").write_text(workspace.run("export", "last", "--full").stdout)
        Path("prompts.jsonl").write_text('"2 + 2"\n')
    return workspace


@pytest.fixture(scope="module")
def on_terminal(recorded: Workspace) -> Mapping[str, Outcome]:
    """Outcomes on a narrow terminal."""
    return run_forked(recorded, "terminal", [*OUTPUTS, *CREATING, *HELP])


@pytest.fixture(scope="module")
def before_head(recorded: Workspace) -> Mapping[str, Outcome]:
    """Outcomes if the reader exits after the first byte."""
    return run_forked(recorded, "head", [*OUTPUTS, DEMO])


@pytest.fixture(scope="module")
def before_closed(recorded: Workspace) -> Mapping[str, Outcome]:
    """Outcomes if the reader exits before the command starts."""
    return run_forked(recorded, "closed", IMMEDIATE)


@pytest.mark.parametrize("line", [*OUTPUTS, *CREATING, *HELP])
def test_command_works_on_a_narrow_terminal(on_terminal: Mapping[str, Outcome], line: str) -> None:
    code, output = on_terminal[line]
    assert "Traceback" not in output
    assert code == 0, output
    assert Screen(COLUMNS, 24).write(output) != []


@pytest.mark.parametrize("line", [*OUTPUTS, DEMO])
def test_command_ends_without_a_traceback_when_its_reader_stops(before_head: Mapping[str, Outcome], line: str) -> None:
    code, errors = before_head[line]
    assert "Traceback" not in errors
    assert "broken pipe" not in errors.lower()
    assert code in (0, 1), errors


@pytest.mark.parametrize("line", IMMEDIATE)
def test_command_ends_without_a_traceback_when_its_reader_has_exited(
    before_closed: Mapping[str, Outcome], line: str
) -> None:
    code, errors = before_closed[line]
    assert "Traceback" not in errors
    assert "broken pipe" not in errors.lower()
    assert code in (0, 1), errors


def test_all_commands_run_on_a_terminal() -> None:
    assert {line.partition(" ")[0] for line in HELP} == set(COMMANDS)
