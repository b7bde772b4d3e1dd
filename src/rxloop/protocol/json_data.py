"""Conversion of values to immutable JSON data."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import PurePath
from types import MemberDescriptorType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import orjson
from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from rxloop.errors import InvalidEvent
from rxloop.protocol.model import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList

MAX_DEPTH = 100
"""Maximum nesting depth of lists and dicts. JSON parsers stop at 200 levels, and the event itself adds a few."""

MAX_VALUES = 1_000_000
"""Maximum number of values in nested lists and dicts, in total."""

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1

_MAX_PATH = 4
"""Maximum number of path components in an error."""

Type = Literal["simple", "any", "more"]

M = TypeVar("M", bound=BaseModel)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded. They occur in file names that are not UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def freeze_json(value: Any, name: str, limit: int = MAX_VALUES) -> Any:
    """Convert a value of any type to immutable JSON data.

    Args:
        value: Lists, dicts, and values of the types listed in docs/protocol.md.
        name: Name of the value to use in errors.
        limit: Maximum number of values in nested lists and dicts, in total.

    Raises:
        InvalidEvent: The value cannot be encoded as JSON, or it is nested too deep.
    """
    if value.__class__ is FrozenDict or value.__class__ is FrozenList:
        return value
    try:
        converter = _Converter()
        converter.limit = converter.remaining = limit
        return converter.convert_any(value, 0)
    except _InvalidValue as fault:
        raise fault.to_error(name) from fault.__cause__


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, so that equal metadata or tool arguments have equal texts."""
    return orjson.dumps(freeze_json(value, "metadata"), option=orjson.OPT_SORT_KEYS).decode()


def freeze_field(fields: dict[str, Any], name: str, classes: frozenset[type], type_: Type) -> Any:
    """Convert a field value to immutable JSON data.

    Raises:
        InvalidEvent: The value cannot be encoded as JSON, or it has the wrong type.
    """
    value = fields[name]
    converter = _Converter()
    try:
        result = converter.convert_any(value, 0) if type_ == "any" else converter.convert_typed(value, 0)
        if type_ == "simple" and result.__class__ not in classes:
            expected = " or ".join(sorted(cls.__name__ for cls in classes))
            raise _InvalidValue(f"must be {expected}, got {result!r}")
    except _InvalidValue as fault:
        raise fault.to_error(f"{fields['kind']}: {name}") from fault.__cause__
    return result


def freeze_model(model: M, name: str) -> M:
    """Convert model fields to immutable JSON data, so that events can share the model. If valid, it is not copied.

    Raises:
        InvalidEvent: A field cannot be encoded as JSON.
    """
    try:
        converted: Any = _Converter().convert_model(model, 0)
    except _InvalidValue as fault:
        raise fault.to_error(name) from fault.__cause__
    return converted


def allows_extra(cls: type[BaseModel]) -> bool:
    """Return True if a model accepts unknown fields, as the class for unknown events does."""
    return cls.model_config.get("extra") == "allow"


class _InvalidValue(Exception):
    """Invalid value. Each nesting level adds its path component."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def to_error(self, name: str) -> InvalidEvent:
        # Paths can have a hundred components, so only include the first few.
        path = "".join(self.path[: -_MAX_PATH - 1 : -1])
        return InvalidEvent(f"{name}{path}{'...' if len(self.path) > _MAX_PATH else ''}: {self}")


class _Converter:
    """Converter with limits on depth and size, used to detect cycles."""

    # Class attributes, because most converters use the default and a constructor would be another call per field.
    limit = remaining = MAX_VALUES

    def convert_any(self, value: Any, depth: int) -> Any:
        """Convert a value of any type to JSON data."""
        cls = value.__class__
        if cls is str:
            return value if value.isascii() else replace_surrogates(value)
        if value is None or cls is bool:
            return value
        if cls is int:
            return value if MIN_INTEGER <= value <= MAX_INTEGER else _format_integer(value)
        if cls is float:
            return value if isfinite(value) else _format_float(value)
        # Unlike `isinstance`, `issubclass` requires no `cast`, which is a function call.
        if issubclass(cls, dict):
            return self._convert_dict(value, depth)
        if issubclass(cls, list | tuple):
            return self._convert_list(value, depth)
        return self._convert_other(value, depth)

    def convert_typed(self, value: Any, depth: int) -> Any:
        """Convert a validated field without changing its type."""
        cls = value.__class__
        if cls is str:
            return replace_surrogates(value)
        if value is None or cls is bool or (cls is int and MIN_INTEGER <= value <= MAX_INTEGER):
            return value
        # `isinstance` is slow for other classes, because BaseModel has a metaclass.
        if BaseModel in cls.__mro__:
            return self.convert_model(value, depth)
        if isinstance(value, list):
            return FrozenList(self._freeze_items(cast("list[Any]", value), depth)) if value else EMPTY_LIST
        if isinstance(value, tuple):
            return tuple(self._freeze_items(cast("tuple[Any, ...]", value), depth)) if value else ()
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value)
            return (
                FrozenDict(zip(items, self._freeze_items(items.values(), depth), strict=True)) if items else EMPTY_DICT
            )
        if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _InvalidValue("must fit in 64 bits")
        if isinstance(value, float) and not isfinite(value):
            raise _InvalidValue(f"must be a finite number, got {value}")
        return value

    def _freeze_items(self, values: Iterable[Any], depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise _nesting_error()
        return [self.convert_typed(value, depth + 1) for value in values]

    def convert_model(self, model: BaseModel, depth: int) -> BaseModel:
        """Return the model, or a changed copy if fields had to be converted. The caller may share the model."""
        plan = plan_fields(type(model))
        if plan.mark is not None:
            try:
                plan.mark.__get__(model)
                return model
            except AttributeError:
                pass
        fields = model.__dict__
        changes: dict[str, Any] = {}
        for name, default, classes, type_ in plan.fields:
            value = fields[name]
            if value is default:
                continue
            cls = value.__class__
            if cls in classes:
                if cls is str:
                    if value.isascii():
                        continue
                elif (cls is not int and cls is not float) or MIN_INTEGER <= value <= MAX_INTEGER:
                    continue
            try:
                item = self.convert_any(value, 0) if type_ == "any" else self.convert_typed(value, depth + 1)
            except _InvalidValue as fault:
                fault.path.append(f".{name}")
                raise
            if item is not value:
                changes[name] = item
        result = model.model_copy(update=changes) if changes else model
        if plan.mark is not None:
            plan.mark.__set__(result, True)
        return result

    def _count(self, number: int, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _nesting_error()
        self.remaining -= number
        if self.remaining < 0:
            raise _InvalidValue(f"must not have more than {self.limit:,} values; use a reference to the data")

    def _convert_dict(self, value: Mapping[Any, Any], depth: int) -> FrozenDict:
        if not value:
            return EMPTY_DICT
        self._count(len(value), depth)
        items: dict[str, Any] = {}
        for key, item in value.items():
            name = key if key.__class__ is str and key.isascii() else self._convert_key(key)
            try:
                items[name] = self.convert_any(item, depth + 1)
            except _InvalidValue as fault:
                fault.path.append(f"[{name[:40]!r}]")
                raise
        if len(items) != len(value):
            raise _InvalidValue("must not have keys that are equal in JSON, where all keys are strings")
        return FrozenDict(items)

    def _convert_list(self, value: Sequence[Any], depth: int) -> FrozenList:
        if not value:
            return EMPTY_LIST
        self._count(len(value), depth)
        items: list[Any] = []
        for item in value:
            try:
                items.append(self.convert_any(item, depth + 1))
            except _InvalidValue as fault:
                fault.path.append(f"[{len(items)}]")
                raise
        return FrozenList(items)

    def _convert_key(self, key: Any) -> str:
        name = self.convert_any(key, 0)
        if isinstance(name, str):
            return name
        if name is None or isinstance(name, int | float):
            # Use the same format as pydantic.
            return str(name).lower() if isinstance(name, bool) else str(name)
        raise _InvalidValue(f"keys must be strings, got type {_type_name(key)}")

    def _convert_other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.convert_any(value.value, depth)
        if isinstance(value, str):
            return replace_surrogates(str.__str__(value))
        if isinstance(value, int):
            return self.convert_any(int(value), depth)
        if isinstance(value, float):
            return self.convert_any(float(value), depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return urlsafe_b64encode(bytes(cast("bytes", value))).decode()
        if isinstance(value, PurePath):
            return replace_surrogates(str(value))
        if isinstance(value, Mapping):
            return self._convert_dict(cast("Mapping[Any, Any]", value), depth)
        if isinstance(value, Set):
            return self._convert_list(_sort_set(cast("Set[Any]", value)), depth)
        if isinstance(value, Sequence | deque):
            return self._convert_list(cast("Sequence[Any]", value), depth)
        if isinstance(value, Iterator):
            # Iterators might be infinite, and reading consumes them.
            raise _InvalidValue(f"must not be an iterator, got type {_type_name(value)}; pass a list")
        try:
            data = to_jsonable_python(value, by_alias=True, bytes_mode="base64", inf_nan_mode="strings")
        except Exception as error:
            raise _InvalidValue(
                f"must be a string, number, list, dict or other JSON data, got type {_type_name(value)}"
            ) from error
        return self.convert_any(data, depth)


def _nesting_error() -> _InvalidValue:
    return _InvalidValue(f"must not be nested more than {MAX_DEPTH} deep, or in itself; flatten it or pass a string")


def _format_integer(value: int) -> str:
    """Format a large integer as a string, because most JSON parsers would round or reject it."""
    try:
        return str(value)
    except ValueError as error:
        raise _InvalidValue("must be a number with fewer digits or a string") from error


def _format_float(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _sort_set(values: Set[Any]) -> list[Any]:
    """Sort a set, so that the order is the same in each process."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _type_name(value: Any) -> str:
    return type(value).__qualname__


_Field = tuple[str, Any, frozenset[type], Type]


class FieldPlan(NamedTuple):
    """Field checks for a model."""

    fields: tuple[_Field, ...]
    """Name, default, classes and type of each field. Defaults are skipped, and values of these classes are only checked
    for surrogates and large numbers."""
    own_fields: tuple[_Field, ...]
    """Fields excluding ids and metadata."""
    choices: tuple[tuple[str, tuple[Any, ...]], ...]
    """Literal fields and their allowed values."""
    is_foreign: bool
    """True if the model is defined outside of rxloop, or if it accepts unknown fields."""
    mark: MemberDescriptorType | None
    """Slot that marks normalised instances, so that events can share them. Copies are not marked."""


_ENVELOPE = frozenset(("context_id", "task_id", "parent_task_id", "agent_path", "step", "branch", "metadata"))

_RUN_FIELDS = frozenset(("version", "seq", "sub", "attempt", "timestamp"))
"""Fields set by the run."""

_SAFE_DEFAULTS = (None, False, True, "", 0, ())
"""Valid defaults, compared by identity."""

_NO_DEFAULT = object()

_FROZEN: frozenset[type] = frozenset((NoneType, FrozenDict, FrozenList))

_SIMPLE: dict[Any, frozenset[type]] = {
    str: frozenset((str,)),
    int: frozenset((int,)),
    float: frozenset((int, float)),
    bool: frozenset((bool,)),
    NoneType: frozenset((NoneType,)),
}


@cache
def plan_fields(cls: type[BaseModel]) -> FieldPlan:
    """Build field checks for a model."""
    fields: list[_Field] = []
    choices: list[tuple[str, tuple[Any, ...]]] = []
    for name, field in cls.model_fields.items():
        annotation = field.annotation
        default = field.default if any(field.default is safe for safe in _SAFE_DEFAULTS) else _NO_DEFAULT
        if name in _RUN_FIELDS:
            continue
        if get_origin(annotation) is Literal:
            choices.append((name, get_args(annotation)))
        elif _accepts_any(annotation):
            fields.append((name, default, _FROZEN | {str, bool}, "any"))
        elif classes := _simple_classes(annotation):
            fields.append((name, default, classes, "simple"))
        else:
            fields.append((name, default, _FROZEN, "more"))
    is_foreign = not cls.__module__.startswith("rxloop.") or allows_extra(cls)
    own_fields = tuple(field for field in fields if field[0] not in _ENVELOPE)
    return FieldPlan(tuple(fields), own_fields, tuple(choices), is_foreign, getattr(cls, "_normalised", None))


def _accepts_any(annotation: Any) -> bool:
    if annotation in (Any, object, JsonValue, dict, list, Mapping, Sequence):
        return True
    return get_origin(annotation) is not Literal and any(map(_accepts_any, get_args(annotation)))


def _simple_classes(annotation: Any) -> frozenset[type]:
    """Return classes if the annotation is simple, such as `str | None`."""
    if get_origin(annotation) in (Union, UnionType):
        parts = [_simple_classes(part) for part in get_args(annotation)]
        return frozenset[type]().union(*parts) if all(parts) else frozenset()
    return _SIMPLE.get(annotation, frozenset()) if isinstance(annotation, type) else frozenset()
