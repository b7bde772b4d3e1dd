"""Shell completion."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rxloop.cli.suggestions import suggest_models
from support.cli_workspace import Workspace

WORD_BREAKS = r"$' \t\n\"\'><=;|&(:'"


def complete(workspace: Workspace, line: str) -> list[str]:
    """Return the suggestions of Bash for a command line."""
    script = (
        f'rxloop() {{ {shlex.quote(sys.executable)} -m rxloop "$@"; }}\n'
        f"{workspace.run('completion', 'bash').stdout}"
        f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_WORDBREAKS={WORD_BREAKS}\n"
        '_rxloop_completion; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=workspace.folder, env=workspace.env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rxloop mo", ["models"]),
        ("rxloop run --thou", ["--thoughts"]),
        ("rxloop run --thoughts b", ["brief"]),
        ("rxloop keys ", ["set", "list", "remove", "path"]),
        ('rxloop run "an unfinished question" --strategy rea', ["react"]),
        ("rxloop run 'it is", []),
        ("rxloop protocol tool-c", ["tool-call-delta", "tool-complete"]),
        ("rxloop keys set dee", ["deepseek"]),
        ("rxloop keys remove DEE", ["DEEPSEEK_API_KEY"]),
    ],
)
def test_bash_suggests_commands_options_and_values(workspace: Workspace, line: str, expected: list[str]) -> None:
    assert complete(workspace, line) == expected


def test_bash_suggests_the_part_of_a_model_name_after_the_colon(workspace: Workspace) -> None:
    assert complete(workspace, "rxloop run --model zai:glm-4.7") == ["glm-4.7", "glm-4.7-flash"]


def test_run_ids_are_suggested_with_safe_help_texts(workspace: Workspace) -> None:
    workspace.run("run", "Is $(touch hacked) `or` 'this' a command?\n")
    short = workspace.rows()[0]["taskId"][-6:]
    assert set(complete(workspace, "rxloop show ")) == {"last", short}
    environment = {**workspace.env, "_RXLOOP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "rxloop show "}
    done = subprocess.run([sys.executable, "-m", "rxloop"], env=environment, capture_output=True, text=True, check=True)
    assert "completed Is touch hacked or this a command?" in done.stdout
    assert not {"$", "`"} & set(done.stdout)


def test_missing_database_has_no_suggestions(workspace: Workspace) -> None:
    assert complete(workspace, "rxloop show ") == []
    assert not workspace.database.exists()


def test_vendors_and_known_models_are_suggested() -> None:
    names = suggest_models("anth")
    assert "anthropic" in names
    assert any(name.startswith("anthropic:claude") for name in names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_script_calls_the_command_with_the_variable_of_the_shell(workspace: Workspace, shell: str) -> None:
    script = workspace.run("completion", shell).stdout
    assert "_RXLOOP_COMPLETE" in script
    assert f"complete_{shell}" in script


def test_suggesting_commands_imports_no_command(workspace: Workspace, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rxloop.cli import main\n"
        "try: main()\nfinally: print(sorted(n for n in sys.modules if n.startswith('rxloop.cli.commands.')))"
    )
    environment = {**workspace.env, "_RXLOOP_COMPLETE": "complete_bash", "COMP_WORDS": "rxloop r", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["run", "runs", "replay", "resume", "[]"], os.fsdecode(done.stderr)
