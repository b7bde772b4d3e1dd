"""Errors of pyright and mypy for incorrect and correct programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISTAKES = [Path(__file__).with_name(name) for name in ("mistakes.py", "newcomers.py")]
CORRECT = Path(__file__).with_name("correct.py")
COOKBOOK = sorted((ROOT / "examples/cookbook").glob("*.py"))
SCRIPTS = Path(sys.executable).parent
MARK = re.compile(r"# wrong(?:: unseen by (?P<by>both|mypy|pyright), (?P<why>.+))?$")
PYRIGHT = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    # This strict rule detects misspelt event kinds.
    "reportUnnecessaryComparison": "error",
}
Errors = Mapping[str, Mapping[int, str]]
"""Errors by file and line."""


def run_pyright(folder: Path, *files: Path) -> Errors:
    """Return the errors of pyright with its standard rules."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({**PYRIGHT, "include": [str(file) for file in files]}), encoding="utf-8")
    command = [SCRIPTS / "basedpyright", "--project", config, "--pythonpath", sys.executable, "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    found: dict[str, dict[int, str]] = {}
    for problem in json.loads(ended.stdout)["generalDiagnostics"]:
        line = problem["range"]["start"]["line"] + 1
        found.setdefault(Path(problem["file"]).name, {})[line] = problem["message"]
    return found


def run_mypy(*files: Path) -> Errors:
    """Return the errors of `mypy --strict`, which uses the default cache."""
    command = [SCRIPTS / "mypy", "--strict", "--config-file=", "--python-executable", sys.executable, *files]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert not ended.stderr, ended.stderr
    found: dict[str, dict[int, str]] = {}
    for file, line, message in re.findall(r"^(.*?):(\d+): error: (.*)$", ended.stdout, re.MULTILINE):
        found.setdefault(Path(file).name, {})[int(line)] = message
    return found


@pytest.fixture(scope="module")
def errors_by_checker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    folder = tmp_path_factory.mktemp("checked")
    with ThreadPoolExecutor() as pool:
        by_pyright = pool.submit(run_pyright, folder, *MISTAKES, CORRECT)
        by_mypy = pool.submit(run_mypy, *MISTAKES, CORRECT, *COOKBOOK)
        return {"pyright": by_pyright.result(), "mypy": by_mypy.result()}


def test_few_mistakes_are_undetected() -> None:
    lines = [line for file in MISTAKES for line in file.read_text(encoding="utf-8").splitlines()]
    marks = [mark for line in lines if (mark := MARK.search(line))]
    assert len(marks) >= 360
    assert len([mark for mark in marks if mark["by"]]) <= 4


@pytest.mark.parametrize("file", MISTAKES, ids=lambda file: file.stem)
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_exactly_the_marked_mistakes_are_detected(
    checker: str, file: Path, errors_by_checker: dict[str, Errors]
) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    marks = {number: mark for number, line in enumerate(lines, 1) if (mark := MARK.search(line))}
    expected = {number for number, mark in marks.items() if mark["by"] not in (checker, "both")}
    errors = errors_by_checker[checker].get(file.name, {})
    assert {number: lines[number - 1] for number in expected - errors.keys()} == {}, "not found"
    assert {number: errors[number] for number in errors.keys() - expected} == {}, "found, and not marked"


@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_correct_programs_have_no_errors(checker: str, errors_by_checker: dict[str, Errors]) -> None:
    assert errors_by_checker[checker].get(CORRECT.name, {}) == {}


def test_cookbook_has_no_mypy_errors(errors_by_checker: dict[str, Errors]) -> None:
    names = {path.name for path in COOKBOOK}
    assert {name: errors for name, errors in errors_by_checker["mypy"].items() if name in names} == {}
