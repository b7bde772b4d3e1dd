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

from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from rxloop.errors import InvalidEvent
from rxloop.protocol.model import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList

DEPTH = 100
"""How deep lists and dicts may be nested: JSON is read to a depth of 200, and an event adds a few levels itself."""

MOST = 1_000_000
"""How many values lists and dicts may hold in all."""

LEAST, LARGEST = -(2**63), 2**64 - 1

_SHOWN = 4

Type = Literal["simple", "any", "more"]

M = TypeVar("M", bound=BaseModel)


def readable(text: str) -> str:
    """Replace lone surrogates, which no request can carry: a file name that is not UTF-8 has them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable(value: Any, name: str) -> Any:
    """Turn a value of any type into JSON data, frozen.

    Args:
        value: What somebody gave: lists, dicts, and what the table in docs/protocol.md names.
        name: What it is, for the error.

    Raises:
        InvalidEvent: It cannot be written as JSON, or is nested too deep.
    """
    if value.__class__ is FrozenDict or value.__class__ is FrozenList:
        return value
    try:
        return _Walk().free(value, 0)
    except _Misfit as misfit:
        raise misfit.error(name) from misfit.__cause__


def settled(fields: dict[str, Any], name: str, classes: frozenset[type], type_: Type) -> Any:
    """Turn the value of a field into one that can be written and read again.

    Raises:
        InvalidEvent: There is none.
    """
    value = fields[name]
    walk = _Walk()
    try:
        made = walk.free(value, 0) if type_ == "any" else walk.typed(value, 0)
        if type_ == "simple" and made.__class__ not in classes:
            wanted = " or ".join(sorted(cls.__name__ for cls in classes))
            raise _Misfit(f"{made!r} is not a {wanted}")
    except _Misfit as misfit:
        raise misfit.error(f"{fields['kind']}: {name}") from misfit.__cause__
    return made


def settled_model(model: M, name: str) -> M:
    """Make a model storable that is to be a part of several events: itself where it is.

    Raises:
        InvalidEvent: Something in it cannot be written as JSON.
    """
    try:
        return cast("M", _Walk().model(model, 0))
    except _Misfit as misfit:
        raise misfit.error(name) from misfit.__cause__


def takes_any(cls: type[BaseModel]) -> bool:
    """Tell whether it is the class for events of any kind."""
    return cls.model_config.get("extra") == "allow"


class _Misfit(Exception):
    """Something that fits no rule, on its way out of the walk: each level adds where it was."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place: list[str] = []

    def error(self, name: str) -> InvalidEvent:
        # Of a place a hundred levels down the beginning will do.
        where = "".join(self.place[: -_SHOWN - 1 : -1])
        return InvalidEvent(f"{name}{where}{'...' if len(self.place) > _SHOWN else ''}: {self}")


class _Walk:
    """One walk over a value; it ends though the value holds itself, or the same part a million times."""

    _left = MOST

    def free(self, value: Any, depth: int) -> Any:
        """Any value, as JSON data."""
        cls = value.__class__
        if cls is str:
            return value if value.isascii() else readable(value)
        if value is None or cls is bool:
            return value
        if cls is int:
            return value if LEAST <= value <= LARGEST else _digits(value)
        if cls is float:
            return value if isfinite(value) else _not_finite(value)
        if isinstance(value, dict):
            return self._dict(cast("dict[Any, Any]", value), depth)
        if isinstance(value, list | tuple):
            return self._list(cast("Sequence[Any]", value), depth)
        return self._other(value, depth)

    def typed(self, value: Any, depth: int) -> Any:
        """Make what stands in a field of a certain type storable, as that type."""
        cls = value.__class__
        if cls is str:
            return readable(value)
        if value is None or cls is bool or (cls is int and LEAST <= value <= LARGEST):
            return value
        # Not `isinstance`, which takes longer than all the rest where the class is not the same.
        if BaseModel in cls.__mro__:
            return self.model(value, depth)
        if isinstance(value, list):
            return FrozenList(self._all(cast("list[Any]", value), depth)) if value else EMPTY_LIST
        if isinstance(value, tuple):
            return tuple(self._all(cast("tuple[Any, ...]", value), depth)) if value else ()
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value)
            return FrozenDict(zip(items, self._all(items.values(), depth), strict=True)) if items else EMPTY_DICT
        if isinstance(value, int) and not LEAST <= value <= LARGEST:
            raise _Misfit("the number takes more than 64 bits: give a smaller one")
        if isinstance(value, float) and not isfinite(value):
            raise _Misfit(f"{value} is not a finite number: give one, or leave it out")
        return value

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        if depth >= DEPTH:
            raise _too_deep()
        return [self.typed(value, depth + 1) for value in values]

    def model(self, model: BaseModel, depth: int) -> BaseModel:
        """Return the same model, or a copy where something had to be made storable: it may be somebody's constant."""
        plan = plan_of(type(model))
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
                elif (cls is not int and cls is not float) or LEAST <= value <= LARGEST:
                    continue
            try:
                made = self.free(value, 0) if type_ == "any" else self.typed(value, depth + 1)
            except _Misfit as misfit:
                misfit.place.append(f".{name}")
                raise
            if made is not value:
                changes[name] = made
        made = model.model_copy(update=changes) if changes else model
        if plan.mark is not None:
            plan.mark.__set__(made, True)
        return made

    def _count(self, number: int, depth: int) -> None:
        if depth >= DEPTH:
            raise _too_deep()
        self._left -= number
        if self._left < 0:
            raise _Misfit(f"more than {MOST:,} values: keep them elsewhere, and say where")

    def _dict(self, value: Mapping[Any, Any], depth: int) -> FrozenDict:
        if not value:
            return EMPTY_DICT
        self._count(len(value), depth)
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = key if key.__class__ is str and key.isascii() else self._key(key)
            try:
                made[name] = self.free(item, depth + 1)
            except _Misfit as misfit:
                misfit.place.append(f"[{name[:40]!r}]")
                raise
        if len(made) != len(value):
            raise _Misfit("two keys are the same in JSON, where every key is a text: give other ones")
        return FrozenDict(made)

    def _list(self, value: Sequence[Any], depth: int) -> FrozenList:
        if not value:
            return EMPTY_LIST
        self._count(len(value), depth)
        made: list[Any] = []
        for item in value:
            try:
                made.append(self.free(item, depth + 1))
            except _Misfit as misfit:
                misfit.place.append(f"[{len(made)}]")
                raise
        return FrozenList(made)

    def _key(self, key: Any) -> str:
        made = self.free(key, 0)
        if isinstance(made, str):
            return made
        if made is None or isinstance(made, int | float):
            # As pydantic writes them.
            return str(made).lower() if isinstance(made, bool) else str(made)
        raise _Misfit(f"a key of the type {_type(key)}: keys are texts in JSON")

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.free(value.value, depth)
        if isinstance(value, str):
            return readable(str.__str__(value))
        if isinstance(value, int):
            return self.free(int(value), depth)
        if isinstance(value, float):
            return self.free(float(value), depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return urlsafe_b64encode(bytes(cast("bytes", value))).decode()
        if isinstance(value, PurePath):
            return readable(str(value))
        if isinstance(value, Mapping):
            return self._dict(cast("Mapping[Any, Any]", value), depth)
        if isinstance(value, Set):
            return self._list(_in_order(cast("Set[Any]", value)), depth)
        if isinstance(value, Sequence | deque):
            return self._list(cast("Sequence[Any]", value), depth)
        if isinstance(value, Iterator):
            # It might have no end, and what it gave would be gone.
            raise _Misfit(f"of the type {_type(value)}, which can be read only once: make a list of it")
        try:
            made = to_jsonable_python(value, by_alias=True, bytes_mode="base64", inf_nan_mode="strings")
        except Exception as error:
            raise _Misfit(
                f"of the type {_type(value)}, which JSON has nothing for: give text, numbers, lists or dicts"
            ) from error
        return self.free(made, depth)


def _too_deep() -> _Misfit:
    return _Misfit(f"nested more than {DEPTH} deep, or in itself: give it flatter, or as a text")


def _digits(value: int) -> str:
    """Write a number that most readers of JSON would round, or refuse, as a text."""
    try:
        return str(value)
    except ValueError as error:
        raise _Misfit("the number has too many digits: give a smaller one, or a text") from error


def _not_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _in_order(values: Set[Any]) -> list[Any]:
    """Sort a set into a list that is the same in every process."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _type(value: Any) -> str:
    return type(value).__qualname__


_Field = tuple[str, Any, frozenset[type], Type]


class Plan(NamedTuple):
    """What of a model needs a look."""

    fields: tuple[_Field, ...]
    """The name, the default, which needs no look, and the classes whose values are storable as they are, but for a look
    at texts and numbers."""
    beside: tuple[_Field, ...]
    """Those of an event that are beside its ids and metadata."""
    choices: tuple[tuple[str, tuple[Any, ...]], ...]
    """The fields that take few values, with these."""
    own: bool
    """The kind is not ours, or has fields that the class does not know."""
    mark: MemberDescriptorType | None
    """The slot that says of a model which stands in several events that it is settled; a copy does not have it."""


_ENVELOPE = frozenset(("context_id", "task_id", "parent_task_id", "agent_path", "step", "branch", "metadata"))

_BY_RUN = frozenset(("version", "seq", "sub", "attempt", "timestamp"))
"""What the run itself stamps."""

_PLAIN = (None, False, True, "", 0, ())
"""Defaults that are storable, and one object each."""

_NOTHING = object()

_FROZEN: frozenset[type] = frozenset((NoneType, FrozenDict, FrozenList))

_SIMPLE: dict[Any, frozenset[type]] = {
    str: frozenset((str,)),
    int: frozenset((int,)),
    float: frozenset((int, float)),
    bool: frozenset((bool,)),
    NoneType: frozenset((NoneType,)),
}


@cache
def plan_of(cls: type[BaseModel]) -> Plan:
    """Work out what of the values of a model needs a look."""
    fields: list[_Field] = []
    choices: list[tuple[str, tuple[Any, ...]]] = []
    for name, field in cls.model_fields.items():
        annotation = field.annotation
        default = field.default if any(field.default is plain for plain in _PLAIN) else _NOTHING
        if name in _BY_RUN:
            continue
        if get_origin(annotation) is Literal:
            choices.append((name, get_args(annotation)))
        elif _is_free(annotation):
            fields.append((name, default, _FROZEN | {str, bool}, "any"))
        elif classes := _classes(annotation):
            fields.append((name, default, classes, "simple"))
        else:
            fields.append((name, default, _FROZEN, "more"))
    own = not cls.__module__.startswith("rxloop.") or takes_any(cls)
    beside = tuple(field for field in fields if field[0] not in _ENVELOPE)
    return Plan(tuple(fields), beside, tuple(choices), own, getattr(cls, "_settled", None))


def _is_free(annotation: Any) -> bool:
    if annotation in (Any, object, JsonValue, dict, list, Mapping, Sequence):
        return True
    return get_origin(annotation) is not Literal and any(map(_is_free, get_args(annotation)))


def _classes(annotation: Any) -> frozenset[type]:
    """Return the classes of a field of simple types, such as `str | None`; none where there is more to it."""
    if get_origin(annotation) in (Union, UnionType):
        parts = [_classes(part) for part in get_args(annotation)]
        return frozenset[type]().union(*parts) if all(parts) else frozenset()
    return _SIMPLE.get(annotation, frozenset()) if isinstance(annotation, type) else frozenset()
