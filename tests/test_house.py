"""The house: one map of its rooms, in every place that shows it, and imports that keep to it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/rxloop"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CONTRACT, CIRCLES = tomllib.loads(PYPROJECT)["tool"]["importlinter"]["contracts"][:2]
FLOORS = [re.findall(r"(?<![_a-z])[a-z]+", floor) for floor in CONTRACT["layers"]]
ROOMS = [room for floor in FLOORS for room in floor]
PLANNED = {room for floor in CONTRACT["layers"] for room in re.findall(r"\(([a-z]+)\)", floor)}


def first_line(room: str) -> str:
    file = SOURCE / room / "__init__.py"
    text = (file if file.exists() else SOURCE / f"{room}.py").read_text(encoding="utf-8")
    return text.removeprefix('"""').splitlines()[0].removesuffix('"""')


def test_everything_lies_in_a_room() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {*ROOMS} - {"agent", "errors"} - PLANNED
    files = {path.name for path in SOURCE.glob("*.py")}
    assert files == {"__init__.py", "__main__.py", "_lazy.py", "_version.py", "agent.py", "errors.py"}


def test_there_are_at_most_twelve_floors() -> None:
    assert len(CONTRACT["layers"]) <= 12


def test_only_the_types_that_the_contract_names_look_upward() -> None:
    assert len(CONTRACT["ignore_imports"]) == 3


def test_only_types_go_in_a_circle() -> None:
    assert CIRCLES["type"] == "acyclic_siblings"
    for line in CIRCLES["ignore_imports"]:
        importer, imported = line.removeprefix("rxloop.").split(" -> ")
        text = SOURCE.joinpath(*importer.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        assert f"    from {imported} import " in text.split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]


def test_a_room_says_what_it_is_in_the_words_of_the_map() -> None:
    for room in {*ROOMS} - {"agent", "errors"} - PLANNED:
        assert f"# {room}: {first_line(room)}" in PYPROJECT


@pytest.mark.parametrize("page", ["README.md", "docs/design.md"])
def test_the_documents_show_the_same_map(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^ *# ([a-z]+): (.+)$", PYPROJECT, re.MULTILINE)
    said = {room: line for room, line in lines if room in ROOMS}
    assert {*said} == {*ROOMS}
    for number, floor in enumerate(reversed(FLOORS), start=1):
        for room in floor:
            name = f"{room}.py" if room in {"agent", "errors"} else f"{room}/"
            planned = " (planned)" if room in PLANNED else ""
            assert f"| {number} | `{name}`{planned} | {said[room]} |" in text


def test_imports_keep_to_the_map() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
