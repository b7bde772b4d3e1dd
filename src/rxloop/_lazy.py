"""Packages whose names are imported when they are first asked for."""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Whoever imports a module, the import system puts it into its package: here what it is named for stands there.
        if isinstance(value, ModuleType) and name in self._homes:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*{*super().__dir__(), *self._homes}]


def import_later(package: str, homes: Mapping[str, str]) -> None:
    """Import the names of a package when they are first asked for.

    Args:
        package: The package, whose `__init__` calls this.
        homes: The module of each name.
    """
    module = sys.modules[package]
    vars(module)["_homes"] = homes
    module.__class__ = _Lazy
