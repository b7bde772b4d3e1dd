"""The public names."""

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
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
PUBLIC_MODULES = [name for name in PACKAGES if getattr(import_module(name), "__all__", ())]
MAX_TOP_NAMES = 113
"""Number of names of `rxloop` itself. All others are in the package that they belong to."""
INTERNAL_ERRORS = {"EventLike", "Paused"}
"""Classes in `rxloop.errors` that are not for users."""


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return pkgutil.resolve_name(request.param)


def exported(package: ModuleType) -> list[str]:
    return list(getattr(package, "__all__", ()))


def test_the_package_says_what_it_exports() -> None:
    assert "Agent" in rxloop.__all__
    assert rxloop.__version__


def test_every_exported_name_exists_once(package: ModuleType) -> None:
    names = exported(package)
    assert [name for name in names if not hasattr(package, name)] == []
    assert len(names) == len(set(names))


def test_what_the_type_checker_sees_is_what_comes_when_a_name_is_asked_for() -> None:
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


def test_rxloop_itself_has_few_names() -> None:
    assert len(rxloop.__all__) <= MAX_TOP_NAMES


def test_every_public_name_is_in_a_document() -> None:
    words = {word for path in DOCUMENTS for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    errors = [
        name for name, value in vars(rxloop.errors).items() if getattr(value, "__module__", "") == "rxloop.errors"
    ]
    names = {name: exported(import_module(name)) for name in PUBLIC_MODULES}
    names["rxloop.errors"] = [name for name in errors if not name.startswith("_") and name not in INTERNAL_ERRORS]
    assert {package: missing for package, found in names.items() if (missing := {*found} - words)} == {
        "rxloop": {"__version__"}
    }


def test_every_public_module_has_a_docstring() -> None:
    assert [name for name in PUBLIC_MODULES if not import_module(name).__doc__] == []


def test_no_module_takes_the_place_of_an_exported_function() -> None:
    modules = {found.name for found in pkgutil.iter_modules(rxloop.__path__)}
    assert modules & {*rxloop.__all__} == set()


def test_a_package_named_like_a_public_function_does_not_take_its_place() -> None:
    code = "import rxloop.server.a2a.adapter; from rxloop.server import PushOptions, a2a; print(callable(a2a))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_a_name_that_there_is_not_is_said_so() -> None:
    with pytest.raises(AttributeError, match="module 'rxloop' has no attribute 'Agnet'"):
        _ = rxloop.Agnet  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_alone_loads_nothing_else() -> None:
    loaded = "import rxloop, sys; print(*[name for name in sys.modules if name.startswith(('rxloop.', 'pydantic'))])"
    done = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert {*done.stdout.split()} == {"rxloop._lazy", "rxloop.operators"}


def test_every_exported_class_and_function_has_a_docstring_of_its_own(package: ModuleType) -> None:
    members = {name: getattr(package, name) for name in exported(package)}
    documented = {name: value for name, value in members.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in documented.items() if not vars_doc(value)] == []


def vars_doc(value: object) -> str | None:
    """The docstring of the object itself: that of a base class does not count."""
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
