"""Exports and docstrings of public names."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import rxloop
import rxloop.errors

PACKAGES = [
    "rxloop",
    *(found.name for found in pkgutil.walk_packages(rxloop.__path__, "rxloop.") if found.ispkg),
]

ROOT = Path(__file__).parents[2]
STABILITY = ROOT / "docs/stability.md"
DOCUMENTS = [ROOT / "README.md", *({*(ROOT / "docs").glob("*.md")} - {STABILITY})]
PUBLIC_MODULES = [name for name in PACKAGES if getattr(import_module(name), "__all__", ())]
MAX_TOP_NAMES = 113
"""Number of names exported by `rxloop`. Other names are exported only by subpackages."""
INTERNAL_ERRORS = {"EventLike", "Paused"}
"""Internal classes in `rxloop.errors`."""


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return pkgutil.resolve_name(request.param)


def list_exports(package: ModuleType) -> list[str]:
    return list(getattr(package, "__all__", ()))


def test_packages_declare_their_exports() -> None:
    assert "Agent" in rxloop.__all__
    assert rxloop.__version__


def test_exported_names_exist_and_are_unique(package: ModuleType) -> None:
    names = list_exports(package)
    assert [name for name in names if not hasattr(package, name)] == []
    assert len(names) == len(set(names))


def test_static_imports_equal_lazy_exports() -> None:
    [block] = [node for node in ast.parse(inspect.getsource(rxloop)).body if isinstance(node, ast.If)]
    seen = {
        (alias.asname or alias.name): (str(node.module), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen, "op"} == {*rxloop.__all__}
    for name, (module, own) in seen.items():
        assert getattr(rxloop, name) is getattr(import_module(module), own)
    assert {*dir(rxloop)} >= {*rxloop.__all__}


def test_rxloop_has_the_declared_number_of_names() -> None:
    assert len(rxloop.__all__) <= MAX_TOP_NAMES


def list_public_names() -> dict[str, set[str]]:
    """Return the public names of each package that exports names, and of `rxloop.errors`."""
    errors = {
        name
        for name, value in vars(rxloop.errors).items()
        if getattr(value, "__module__", "") == "rxloop.errors" and not name.startswith("_")
    }
    names = {name: {*list_exports(import_module(name))} for name in PUBLIC_MODULES}
    return {**names, "rxloop.errors": errors - INTERNAL_ERRORS}


def test_every_public_name_is_documented() -> None:
    words = {word for path in DOCUMENTS for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    undocumented = {package: missing for package, names in list_public_names().items() if (missing := names - words)}
    assert undocumented == {"rxloop": {"__version__"}}


def test_stability_page_lists_every_public_name() -> None:
    _, *sections = re.split(
        r"^## (?=Stable names|Provisional names)", STABILITY.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert [section.partition("\n")[0] for section in sections] == ["Stable names", "Provisional names"]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", "".join(sections), re.MULTILINE)
    listed = {package: re.findall(r"`(\w+)`", names) for package, names in rows}
    assert len(listed) == len(rows)
    assert listed == {package: sorted(names) for package, names in list_public_names().items()}


def test_every_public_module_has_a_docstring() -> None:
    assert [name for name in PUBLIC_MODULES if not import_module(name).__doc__] == []


def test_modules_do_not_replace_exported_functions() -> None:
    modules = {found.name for found in pkgutil.iter_modules(rxloop.__path__)}
    assert modules & {*rxloop.__all__} == set()


def test_package_does_not_replace_a_function_of_the_same_name() -> None:
    code = "import rxloop.server.a2a.adapter; from rxloop.server import PushOptions, a2a; print(callable(a2a))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rxloop' has no attribute 'Agnet'"):
        _ = rxloop.Agnet  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_rxloop_loads_no_other_modules() -> None:
    loaded = "import rxloop, sys; print(*[name for name in sys.modules if name.startswith(('rxloop.', 'pydantic'))])"
    done = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert {*done.stdout.split()} == {"rxloop._lazy", "rxloop.operators"}


def test_every_exported_class_and_function_has_its_own_docstring(package: ModuleType) -> None:
    members = {name: getattr(package, name) for name in list_exports(package)}
    documented = {name: value for name, value in members.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in documented.items() if not get_own_docstring(value)] == []


def get_own_docstring(value: object) -> str | None:
    """Return the docstring of an object, ignoring inherited docstrings."""
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
