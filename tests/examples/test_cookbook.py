"""Programs of the cookbook. They run in this process, because 30 processes would take half a minute."""

from __future__ import annotations

import ast
import logging
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "examples/cookbook").glob("*.py"))
LINK = re.compile(r"^\| \[(?P<title>[^]]+)\]\(\.\./examples/cookbook/(?P<name>\w+)\.py\) \| \S.* \|$", re.MULTILINE)
MAX_LINES = 59


def get_title(program: Path) -> str:
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_prints_the_output_at_its_end(
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.setattr(logging.getLogger("agents"), "handlers", [])

    runpy.run_path(str(program), run_name="__main__")

    lines = [f"# {line}".rstrip() for line in capsys.readouterr().out.splitlines()]
    _, _, expected = program.read_text(encoding="utf-8").partition("\n\n# Output:\n")
    assert "\n".join(lines) == expected.rstrip("\n"), "update the comment at the end of the program"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_programs_have_fewer_than_60_lines() -> None:
    lines = {program.name: program.read_text(encoding="utf-8").count("\n") for program in PROGRAMS}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_page_lists_all_programs_with_their_titles() -> None:
    page = (ROOT / "docs/cookbook.md").read_text(encoding="utf-8")
    assert {match["name"]: f"{match['title']}." for match in LINK.finditer(page)} == {
        program.stem: get_title(program) for program in PROGRAMS
    }
