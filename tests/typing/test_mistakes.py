"""Pyright and mypy find what people type in wrong, and nothing in what is right, the README included."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.run_document import python_blocks

ROOT = Path(__file__).parents[2]
MISTAKES = Path(__file__).with_name("mistakes.py")
CORRECT = Path(__file__).with_name("correct.py")
SCRIPTS = Path(sys.executable).parent
MARK = re.compile(r"# wrong(?:: unseen by (?P<by>both|mypy|pyright), (?P<why>.+))?$")
PYRIGHT = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    # Of the strict rules the one that finds a kind that is misspelt.
    "reportUnnecessaryComparison": "error",
}
Found = Mapping[str, Mapping[int, str]]
"""By file and line: the errors."""


def pyright(folder: Path, *files: Path) -> Found:
    """What pyright finds with its standard rules."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({**PYRIGHT, "include": [str(file) for file in files]}), encoding="utf-8")
    command = [SCRIPTS / "basedpyright", "--project", config, "--pythonpath", sys.executable, "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    found: dict[str, dict[int, str]] = {}
    for problem in json.loads(ended.stdout)["generalDiagnostics"]:
        line = problem["range"]["start"]["line"] + 1
        found.setdefault(Path(problem["file"]).name, {})[line] = problem["message"]
    return found


def mypy(*files: Path) -> Found:
    """What `mypy --strict` finds. What it knows of the packages is kept, as mypy does for everybody."""
    command = [SCRIPTS / "mypy", "--strict", "--config-file=", "--python-executable", sys.executable, *files]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert not ended.stderr, ended.stderr
    found: dict[str, dict[int, str]] = {}
    for file, line, message in re.findall(r"^(.*?):(\d+): error: (.*)$", ended.stdout, re.MULTILINE):
        found.setdefault(Path(file).name, {})[int(line)] = message
    return found


def readme(folder: Path) -> Path:
    """The blocks of the README as one function, at their lines; a block may give a name of another one anew."""
    lines = ["async def document() -> None:"]
    for line, _, block in python_blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        lines += [""] * (line - len(lines))
        lines += [f"    {text}" for text in block.splitlines()]
    file = folder / "readme.py"
    file.write_text("\n".join([*lines, "# mypy: allow-redefinition", ""]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    folder = tmp_path_factory.mktemp("checked")
    with ThreadPoolExecutor() as pool:
        by_pyright = pool.submit(pyright, folder, MISTAKES, CORRECT)
        by_mypy = pool.submit(mypy, MISTAKES, CORRECT, readme(folder))
        return {"pyright": by_pyright.result(), "mypy": by_mypy.result()}


def test_there_are_many_mistakes_and_few_that_are_not_seen() -> None:
    marks = [mark for line in MISTAKES.read_text(encoding="utf-8").splitlines() if (mark := MARK.search(line))]
    assert len(marks) >= 130
    assert len([mark for mark in marks if mark["by"]]) <= 3


@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_each_mistake_is_found_and_nothing_else(checker: str, found: dict[str, Found]) -> None:
    lines = MISTAKES.read_text(encoding="utf-8").splitlines()
    marks = {number: mark for number, line in enumerate(lines, 1) if (mark := MARK.search(line))}
    expected = {number for number, mark in marks.items() if mark["by"] not in (checker, "both")}
    errors = found[checker].get(MISTAKES.name, {})
    assert {number: lines[number - 1] for number in expected - errors.keys()} == {}, "not found"
    assert {number: errors[number] for number in errors.keys() - expected} == {}, "found, and not marked"


@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_nothing_is_found_in_programs_that_are_right(checker: str, found: dict[str, Found]) -> None:
    assert found[checker].get(CORRECT.name, {}) == {}


def test_mypy_finds_nothing_in_the_readme(found: dict[str, Found]) -> None:
    assert found["mypy"].get("readme.py", {}) == {}
