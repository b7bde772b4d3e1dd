"""Base class of JSON models, immutable containers, and model construction without validation."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, PrivateAttr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError
from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, PrivateAttr))
    class _FrozenModels(ModelMetaclass):
        """Metaclass that tells type checkers that the models are frozen."""

        # Otherwise, pyright uses the missing `__hash__` of instances for classes too.
        def __hash__(self) -> int: ...

else:
    _FrozenModels = type(BaseModel)


class Wire(BaseModel, metaclass=_FrozenModels):
    """Base class of immutable models with snake case names in Python and camelCase names in JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=cache(to_camel),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        # Build schemas on first use, because building all of them would slow down importing rxloop.
        defer_build=True,
    )

    if not TYPE_CHECKING:
        # Type checkers use the signature that pydantic creates from the fields.

        def __init__(self, /, *values: Any, **fields: Any) -> None:
            __tracebackhide__ = True
            if values:
                raise TypeError(_explain_argument(type(self), "*"))
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)
            except ValidationError as error:
                for name in fields:
                    if any(line["type"] == "extra_forbidden" and line["loc"] == (name,) for line in error.errors()):
                        error.add_note(_explain_argument(type(self), name))
                raise

        __init__.__signature__ = inspect.signature(BaseModel.__init__)
        # Like the method of `BaseModel`, it is not called for a model that is read from data.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema, with field docstrings as descriptions.

        The docstrings are read from the source code on demand. Pydantic's `use_attribute_docstrings` would read them at
        import, which takes a quarter of rxloop's import time.
        """
        result = handler(schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(result).get("properties", {})
        for base in reversed(cls.__mro__):
            for name, text in _field_docstrings(base).items():
                if name in cls.model_fields:
                    properties[cls.model_fields[name].serialization_alias or name]["description"] = text
        return result


def _explain_argument(cls: type[BaseModel], name: str) -> str:
    """Return an error message for an unknown argument. `*` stands for positional arguments."""
    # Imported lazily, because correct programs do not need it.
    from rxloop._names import explain_argument, explain_name

    names = list(cls.model_fields)
    if name == "*":
        remedy = explain_name([cls.__name__], name, ()) or f"write {names[0]}="
        return f"{cls.__name__}() requires keyword arguments; {remedy}"
    remedy = explain_argument(cls.__name__, [cls.__name__], name, names)
    return f"{cls.__name__}() got an unknown argument {name!r}; {remedy}"


@cache
def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of a class's annotated attributes."""
    if not issubclass(cls, Wire):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, SyntaxError):
        return {}
    body = cast("ast.ClassDef", tree.body[0]).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _reject_change(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("events are immutable; copy this value with copy.deepcopy() and change the copy")


class FrozenDict(dict[str, Any]):
    """Immutable dict. Copying returns an ordinary dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _reject_change  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    clear = pop = popitem = setdefault = update = _reject_change  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """Immutable list. Copying returns an ordinary list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _reject_change  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    append = clear = extend = insert = pop = remove = reverse = sort = _reject_change  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


EMPTY_DICT, EMPTY_LIST = FrozenDict(), FrozenList()


_CONTAINERS = (dict, list)


def thaw(value: Any) -> Any:
    """Return a deep copy that consists of ordinary dicts and lists."""
    # Use `issubclass`, because `isinstance` would require a call to `cast`. Checking items first avoids most calls.
    cls: type[Any] = value.__class__
    if issubclass(cls, dict):
        return {key: thaw(item) if isinstance(item, _CONTAINERS) else item for key, item in value.items()}
    return [thaw(item) if isinstance(item, _CONTAINERS) else item for item in value] if issubclass(cls, list) else value


P = ParamSpec("P")

M = TypeVar("M")

SLOTS: tuple[Callable[[BaseModel, Any], None], ...] = tuple(
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
"""Setters for pydantic's instance slots."""

_set_dict, _set_fields_set, _set_extra, _set_private = SLOTS

_new = object.__new__

_EMPTY: dict[Any, Any] = {dict: EMPTY_DICT, list: EMPTY_LIST}


@cache
def _get_field_names(cls: type[BaseModel]) -> set[str]:
    """Return the names of all fields. Instances can share the set, because pydantic never changes it in place."""
    return set(cls.model_fields)


def share_field_names(model: Any) -> None:
    """Let all fields of a parsed event or message count as set, and those of the messages and calls in it.

    Otherwise, each of them has a set of field names. It takes 700 bytes, and garbage collections examine it.

    Args:
        model: The event or message. Classes of the user remain as they are.
    """
    cls: type[Any] = model.__class__
    if not cls.__module__.startswith("rxloop."):
        return
    _set_fields_set(model, _get_field_names(cls))
    fields: dict[str, Any] = model.__dict__
    for each in (*(fields.get("tool_calls") or ()), *(fields.get("messages") or ()), fields.get("call")):
        share_field_names(each)


def make_unchecked(model: Callable[P, M], *, normalised: bool = False) -> Callable[P, M]:
    """Return a constructor that skips validation, which halves the cost.

    Pass all arguments by field name, with the exact field types. Values are neither converted nor copied, and all
    fields count as set. Do not use it for data from users, tools or vendors.

    Args:
        model: Model without computed and private fields.
        normalised: Mark instances as normalised. Use it if all values are immutable JSON data, so that publication does
            not check them again.
    """
    cls = cast("type[BaseModel]", model)
    defaults = get_defaults(cls)
    factories = tuple(
        (name, cast("Callable[[], Any]", field.default_factory))
        for name, field in cls.model_fields.items()
        if field.default_factory is not None and get_origin(field.default_factory) not in _EMPTY
    )

    fields_set = _get_field_names(cls)
    mark = cast("Any", cls)._normalised.__set__ if normalised else None

    def make(**values: Any) -> BaseModel:
        fields = defaults | values
        for name, factory in factories:
            if name not in values:
                fields[name] = factory()
        model = _new(cls)
        _set_dict(model, fields)
        _set_fields_set(model, fields_set)
        _set_extra(model, None)
        _set_private(model, None)
        if mark is not None:
            mark(model, True)
        return model

    return cast("Callable[P, M]", make)


def get_defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """Return field defaults in field order, with None for required fields.

    Empty dicts and lists are shared, because they are immutable.
    """
    return {
        name: None if field.is_required() else _EMPTY.get(get_origin(field.default_factory), field.default)
        for name, field in cls.model_fields.items()
    }


mutable_fields: Callable[[BaseModel], dict[str, Any]] = attrgetter("__dict__")
"""Return an event's instance dict, which can be changed before publication.

Until publication, an event belongs to one run. This run adds the step, branch, numbers, time, and whether the call is
hidden. Copying the event instead would more than double the cost of a token. Use this function for every change, and
only before the event is published. Afterwards, use `model_copy(update=...)`.
"""


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("bool_as_number", "Input should be a number, not true or false")
    return value


NOT_BOOL = BeforeValidator(_reject_bool)
"""Validator of numbers from clients. By default, pydantic converts true to 1."""


def is_missing(value: Any) -> bool:
    """Return True if an optional field is omitted from the JSON, although zero and an empty string are included."""
    return value is None


def is_empty(value: Any) -> bool:
    """Return True if an optional field is omitted from the JSON."""
    return not value
