"""Checks of `tests/support` and its index in `tests/README.md`."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

from support.processes.counters import count_operations

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
INDEX = re.findall(r"^\* `([a-z0-9_.]+)`: \S", (TESTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = {
    ".".join(path.relative_to(SUPPORT).with_suffix("").parts): path
    for path in SUPPORT.rglob("*.py")
    if path.name != "__init__.py"
}
ENTRIES = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
IMPORTED_ELSEWHERE = {"storage.old_logs.agents", "storage.old_logs.observed", "storage.old_schemas.record"}
"""Modules shared by the tests of old logs and the program that generates these logs."""


@cache
def iter_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def find_imports(path: Path) -> set[str]:
    """Return the dotted names of all imported modules and objects."""
    found: set[str] = set()
    for node in iter_nodes(path):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def find_used_modules(path: Path) -> frozenset[str]:
    """Return the support modules used by a file, including programs started by path."""
    found = find_imports(path)
    for node in iter_nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {*re.findall(r"support(?:\.[a-z0-9_]+)+", node.value)}
            if ".py" in node.value or ":" in node.value:
                found |= {f"support.{name}" for name, file in MODULES.items() if is_reference(node.value, path, file)}
    names = {name.removeprefix("support.") for name in found if name.startswith("support.")}
    return frozenset(names & MODULES.keys())


def is_reference(value: str, path: Path, program: Path) -> bool:
    """True if `value` refers to the program: by path, by file name in the same folder, or as `program:object`."""
    folder = program.parent
    return (
        value.endswith(f"{folder.name}/{program.name}")
        or (value == program.name and path.parent == folder)
        or (value.startswith(f"{program.stem}:") and folder.name == "server_programs")
    )


def test_the_index_lists_every_module_once() -> None:
    assert sorted(INDEX) == sorted(MODULES)


def test_every_module_is_used_by_a_test() -> None:
    used: set[str] = set()
    files = [*ENTRIES]
    while files:
        new = find_used_modules(files.pop()) - used
        used |= new
        files += [MODULES[name] for name in new]
    assert sorted(MODULES.keys() - used) == []


def test_count_of_operations_excludes_garbage_collections() -> None:
    def create_containers() -> None:
        assert [[] for _ in range(100)]

    count = count_operations(create_containers)
    threshold = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: None)
    gc.set_threshold(1)
    try:
        assert count_operations(create_containers) == count
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()
    assert gc.isenabled()


def test_modules_that_tests_import_are_in_support() -> None:
    apart = {
        ".".join(path.relative_to(TESTS).with_suffix("").parts)
        for path in TESTS.rglob("*.py")
        if SUPPORT not in path.parents
    }
    imported = set[str]().union(*map(find_imports, TESTS.rglob("*.py")))
    assert apart & imported == IMPORTED_ELSEWHERE
