"""Packages and layers in pyproject.toml, docs/design.md and the source tree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/rxloop"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LAYER_CONTRACT, CYCLE_CONTRACT = tomllib.loads(PYPROJECT)["tool"]["importlinter"]["contracts"][:2]
LAYERS = [re.findall(r"(?<![_a-z])[a-z]+", layer) for layer in LAYER_CONTRACT["layers"]]
PACKAGES = [package for layer in LAYERS for package in layer]


def first_line(package: str) -> str:
    """Return the first line of the docstring."""
    file = SOURCE / package / "__init__.py"
    text = (file if file.exists() else SOURCE / f"{package}.py").read_text(encoding="utf-8")
    return text.removeprefix('"""').splitlines()[0].removesuffix('"""')


def test_layers_contain_every_package() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {*PACKAGES} - {"errors"}
    files = {path.name for path in SOURCE.glob("*.py")}
    assert files == {"__init__.py", "__main__.py", "_lazy.py", "_names.py", "_version.py", "errors.py"}


def test_there_are_at_most_twelve_layers() -> None:
    assert len(LAYERS) <= 12


def test_layer_contract_has_no_exceptions() -> None:
    assert "ignore_imports" not in LAYER_CONTRACT


def test_cycle_contract_has_no_exceptions() -> None:
    assert CYCLE_CONTRACT["type"] == "acyclic_siblings"
    assert "ignore_imports" not in CYCLE_CONTRACT


def test_docstring_of_each_package_is_in_pyproject() -> None:
    for package in {*PACKAGES} - {"errors"}:
        assert f"# {package}: {first_line(package)}" in PYPROJECT


def test_table_in_design_page_equals_the_layers() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ *# ([a-z]+): (.+)$", PYPROJECT, re.MULTILINE)
    descriptions = {package: line for package, line in lines if package in PACKAGES}
    assert {*descriptions} == {*PACKAGES}
    expected = [
        f"| {number} | `{package}{'.py' if package == 'errors' else '/'}` | {descriptions[package]} |"
        for number, layer in enumerate(reversed(LAYERS), start=1)
        for package in layer
    ]
    assert sorted(re.findall(r"^\| \d+ \| `.+$", text, re.MULTILINE)) == sorted(expected)


def test_imports_follow_the_contracts() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
