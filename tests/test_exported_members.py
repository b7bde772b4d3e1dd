"""The public names."""

from __future__ import annotations

import inspect
import pkgutil
from types import ModuleType

import pytest

import rxloop

PACKAGES = [
    "rxloop",
    *(found.name for found in pkgutil.walk_packages(rxloop.__path__, "rxloop.") if found.ispkg),
]


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


def test_every_public_name_that_the_package_takes_from_its_modules_is_exported() -> None:
    ours = {
        name
        for name, value in vars(rxloop).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("rxloop")
    }
    assert ours <= set(rxloop.__all__)


def test_every_exported_class_and_function_has_a_docstring_of_its_own(package: ModuleType) -> None:
    members = {name: getattr(package, name) for name in exported(package)}
    documented = {name: value for name, value in members.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in documented.items() if not vars_doc(value)] == []


def vars_doc(value: object) -> str | None:
    """The docstring of the object itself: that of a base class does not count."""
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
