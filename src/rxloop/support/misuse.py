"""Error messages for unknown attributes and for changes of immutable objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from types import UnionType
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


def check_argument(argument: str, value: object, is_valid: bool, expected: str) -> None:
    """Raise an error for an invalid argument.

    Args:
        argument: Name of the argument.
        value: Value of the argument.
        is_valid: Result of the check.
        expected: Noun phrase for the error message, if possible with an example.

    Raises:
        ConfigurationError: If `is_valid` is False.
    """
    if not is_valid:
        raise ConfigurationError(f"{argument} must be {expected}, got {value!r}")


def check_type(argument: str, value: object, kind: type | UnionType | tuple[Any, ...], expected: str) -> None:
    """Validate an argument with `isinstance`.

    Raises:
        ConfigurationError: If `isinstance` returns False.
    """
    check_argument(argument, value, isinstance(value, kind), expected)


def check_method(argument: str, value: object, method: str, expected: str) -> None:
    """Validate that an object has a method.

    Raises:
        ConfigurationError: If `method` is missing or not callable.
    """
    has_method = not isinstance(value, type) and callable(getattr(value, method, None))
    check_argument(argument, value, has_method, expected)


def check_minimum(minimum: int, *, optional: bool = False, **integers: object) -> None:
    """Validate integer arguments.

    Args:
        minimum: Smallest allowed value.
        optional: Whether to allow None.
        integers: Values by argument name.

    Raises:
        ConfigurationError: If a value is not an integer or is less than `minimum`.
    """
    expected = f"an integer of at least {minimum}{' or None' if optional else ''}"
    for name, value in integers.items():
        is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        check_argument(name, value, is_valid or (optional and value is None), expected)


def is_number(value: object) -> bool:
    """Return True for integers and floats, but not for booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_positive(*, zero: bool = False, optional: bool = False, **numbers: Any) -> None:
    """Validate positive numbers, such as timeouts.

    Args:
        zero: Whether to allow zero.
        optional: Whether to allow None.
        numbers: Values by argument name.

    Raises:
        ConfigurationError: If a value is not a number or is too small.
    """
    expected = f"{'a number of at least 0' if zero else 'a positive number'}{' or None' if optional else ''}"
    for name, value in numbers.items():
        is_valid = is_number(value) and (value > 0 or (zero and value == 0))
        check_argument(name, value, is_valid or (optional and value is None), expected)


def check_prices(prices: object) -> None:
    """Validate optional prices by model string.

    Raises:
        ConfigurationError: If `prices` is not a mapping.
    """
    check_type("prices", prices, Mapping | None, "a dict of prices, such as {'openai:gpt-5': Price(1.25, 10)}")


def explain_attribute(error: BaseException) -> BaseException:
    """Return an error for an unknown attribute of a request with a remedy. Return other errors unchanged.

    These objects are no `ExplainedAttributes`, because `__getattr__` would make reading all their attributes slower.
    """
    # Subclasses and third-party classes can define `__str__` and `__module__` in any way.
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
