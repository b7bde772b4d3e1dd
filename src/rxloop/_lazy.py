"""Lazy import of public names."""

import sys
from importlib import import_module
from opcode import opname
from types import FrameType, ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """Package that imports its public names on first access."""

    _modules: dict[str, str]
    """Names of the defining modules, by public name."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            raise _make_error(self, name, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        module = self._modules[name]
        is_submodule = module == self.__name__
        try:
            # Public submodules, such as `rxloop.evals.score`, only become attributes when they are imported.
            value = import_module(f"{module}.{name}") if is_submodule else getattr(import_module(module), name)
        except Exception as error:
            from rxloop.errors import ConfigurationError

            if not isinstance(error, ConfigurationError):
                raise
            # Without its extra, a name can be imported and shown, for example by `help`, but not used.
            return _make_placeholder(name, error)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets submodules as attributes. Do not replace a public function of the same name.
        if name not in self._modules or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*{*super().__dir__(), *self._modules}]


def _make_placeholder(name: str, error: Exception) -> type[Any]:
    """Return a class that raises an error when it is called."""

    def refuse(*arguments: object, **options: object) -> None:
        raise type(error)(str(error)) from error

    return type(name, (), {"__new__": refuse, "__doc__": str(error)})


def _make_error(package: ModuleType, name: str, caller: FrameType) -> Exception:
    """Return the error for an unknown name. Private names are looked up by the import system and by tools."""
    code, message = caller.f_code.co_code, f"module {package.__name__!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(message)
    # Imported lazily, because correct programs do not need it.
    from rxloop._names import explain_name

    remedy = explain_name([package.__name__], name, vars(package)["__all__"])
    message = f"{message}; {remedy}" if remedy else message
    # For `from package import name`, Python would replace the message of an AttributeError.
    is_import = opname[code[caller.f_lasti]] == "IMPORT_FROM"
    return ImportError(message, name=package.__name__) if is_import else AttributeError(message)


def import_later(package: str, *existing: str) -> None:
    """Import the public names of a package on first access, and set its `__all__`.

    The calling `__init__` lists them in an `if TYPE_CHECKING` block at its end. They are read from its compiled code,
    which contains each module name followed by the imported names. This requires neither the source nor a parser.

    Args:
        package: Name of the package. Its `__init__` calls this function before the block.
        existing: Public names that the package already defines.
    """
    module = sys.modules[package]
    modules: dict[str, str] = {}
    source = __name__
    for name in sys._getframe(1).f_code.co_names:  # pyright: ignore[reportPrivateUsage]
        if name.startswith("rxloop."):
            source = name
        elif source != __name__:
            modules[name] = source
    vars(module).update(_modules=modules, __all__=sorted([*modules, *existing]))
    module.__class__ = _LazyPackage
