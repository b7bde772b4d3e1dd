"""Demo command, with and without the `cli` extra."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from rxloop.cli import demo
from rxloop.cli.commands import run

ROOT = Path(__file__).parents[2]

Replace = Callable[[str], int]


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command replaces `sys.argv`.
    monkeypatch.setattr(sys, "argv", ["rxloop"])


@pytest.fixture
def replace_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replace:
    """Return a function for replacing the demo program."""
    program = tmp_path / "program.py"
    monkeypatch.setattr(demo, "find_program", lambda: program)
    return lambda text: program.write_text(text, encoding="utf-8")


def test_demo_runs_the_example_of_a_checkout() -> None:
    assert demo.find_program() == ROOT / "examples/kitchen_sink.py"


def test_demo_passes_the_question_to_the_program(replace_program: Replace, capsys: pytest.CaptureFixture[str]) -> None:
    replace_program("if __name__ == '__main__':\n    import sys; print(sys.argv[1:])")
    with pytest.raises(typer.Exit) as end:
        run.demo(["How", "warm?"])
    assert end.value.exit_code == 0
    assert demo.main(["Why?"]) == 0
    assert capsys.readouterr().out == "['How', 'warm?']\n['Why?']\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("KeyboardInterrupt", 130, ""),
        ("BrokenPipeError", 1, ""),
        ("PermissionError(13, 'Permission denied', 'chain.mmd')", 1, "Permission denied: 'chain.mmd'"),
        ("__import__('rxloop.errors').errors.ConfigurationError('no key')", 1, "no key"),
    ],
)
def test_demo_reports_failures_in_one_line(
    replace_program: Replace, capsys: pytest.CaptureFixture[str], error: str, code: int, message: str
) -> None:
    replace_program(f"raise {error}")
    assert demo.run_demo() == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == bool(message)


def test_demo_names_the_missing_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "PROGRAM", "lost.py")
    assert demo.run_demo() == 1
    assert "lost.py is missing from" in capsys.readouterr().err


def test_demo_without_the_extra_describes_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        demo.main(["--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: rxloop demo [-h] [question ...]")
