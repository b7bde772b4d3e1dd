"""Error messages for unknown attributes and for changes of immutable objects."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any, NoReturn

from rxloop.errors import ConfigurationError


class ExplainedAttributes:
    """Base class of objects whose errors for unknown attributes contain a remedy."""

    __slots__ = ()

    if not TYPE_CHECKING:
        # Type checkers find unknown attributes on their own if this method is missing.

        def __getattr__(self, name: str) -> Any:
            raise make_attribute_error(type(self), name)


def make_attribute_error(cls: type, name: str) -> AttributeError:
    """Return an error for an unknown attribute. Protocols of the standard library often look up private names.

    Args:
        cls: Class of the object.
        name: Unknown attribute.
    """
    message = f"{cls.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        # Imported lazily, because correct programs do not need it.
        from rxloop._names import explain_name

        names = [each for each in dir(cls) if not each.startswith("_")]
        remedy = explain_name([f"{base.__name__}." for base in cls.__mro__], name, names)
        message = f"{message}; {remedy}" if remedy else message
    return AttributeError(message)


def check_method(argument: str, value: object, method: str, expected: str) -> None:
    """Check that an object has a method.

    Raises:
        ConfigurationError: The method is missing. The message contains the argument, what was expected, and the value.
    """
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise ConfigurationError(f"{argument} must be {expected}, got {value!r}")


def explain_attribute(error: BaseException) -> BaseException:
    """Return an error for an unknown attribute of a request with a remedy. Return other errors unchanged.

    These objects are no `ExplainedAttributes`, because `__getattr__` would make reading all their attributes slower.
    """
    # Subclasses and classes of other code may have any `__str__` and `__module__`.
    if type(error) is not AttributeError or not str(type(error.obj).__module__).startswith("rxloop.") or not error.name:
        return error
    explained = make_attribute_error(type(error.obj), error.name)
    return explained if str(explained).startswith(str(error)) else error


def explain_changes(cls: type, remedy: str) -> None:
    """Name the remedy in errors about changes of a frozen dataclass.

    With `slots=True`, the error of the standard library for other attributes than fields is unrelated to the cause.

    Args:
        cls: Frozen dataclass.
        remedy: What to write instead.
    """

    def reject(self: object, name: str, *value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot change {name!r}, because a {cls.__name__} is immutable; {remedy}")

    # Classes with `frozen=True` must not define these methods themselves.
    changed: Any = cls
    changed.__setattr__ = changed.__delattr__ = reject
