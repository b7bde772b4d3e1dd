"""Packages whose names are imported when they are first asked for."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home = self._homes[name]
        # A public module of the package itself, such as `rxloop.evals.score`, is no attribute before it is imported.
        value = import_module(f"{home}.{name}") if home == self.__name__ else getattr(import_module(home), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system puts every submodule here. A room that is called like a public function leaves that alone.
        if name not in self._homes or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*{*super().__dir__(), *self._homes}]


def import_later(package: str, *present: str) -> None:
    """Import the public names of a package when they are first asked for, and set its `__all__`.

    The public names are those in the `if TYPE_CHECKING` block at the end of the calling `__init__`, after the import of
    this function. They are taken from its compiled code, which names each module and then what is imported from it, so
    neither the source file nor a parser is needed.

    Args:
        package: The package, whose `__init__` calls this before that block.
        present: Public names that the package has already.
    """
    module = sys.modules[package]
    homes: dict[str, str] = {}
    home = __name__
    for name in sys._getframe(1).f_code.co_names:  # pyright: ignore[reportPrivateUsage]
        if name.startswith("rxloop."):
            home = name
        elif home != __name__:
            homes[name] = home
    vars(module).update(_homes=homes, __all__=sorted([*homes, *present]))
    module.__class__ = _Lazy
