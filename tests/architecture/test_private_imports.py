"""Private modules and names are imported only inside their own package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
SHARED = {"rxloop._lazy", "rxloop._names", "rxloop._version"}
EXCEPTIONS: set[tuple[str, str]] = set()
"""Importing modules and private modules. The set must equal the violations, so it can only shrink."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def iter_private_imports() -> Iterator[tuple[str, str]]:
    """Yield the importing module and the private module or name."""
    for path in SOURCE.rglob("*.py"):
        importer = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                module = str(node.module)
                names = [f"{module}.{alias.name}" for alias in node.names if is_private(alias.name)]
                names += [module] if any(map(is_private, module.split("."))) else []
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if any(map(is_private, alias.name.split(".")))]
            yield from ((importer, name) for name in names if name.startswith("rxloop."))


def find_owner(name: str) -> str:
    """Return the package that contains the first private part of a name."""
    parts = name.split(".")
    return ".".join(parts[: next(index for index, part in enumerate(parts) if is_private(part))])


def test_private_names_are_imported_only_in_their_package() -> None:
    foreign = {
        (importer, name)
        for importer, name in iter_private_imports()
        if name not in SHARED and importer.rpartition(".")[0] != find_owner(name)
    }
    assert foreign == EXCEPTIONS
