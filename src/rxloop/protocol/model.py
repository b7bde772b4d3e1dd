"""Base class of wire models, immutable containers, construction without validation."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NoReturn, ParamSpec, TypeVar, cast, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema


class Wire(BaseModel):
    """A frozen model: snake_case in Python, camelCase in JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=cache(to_camel),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        # Built when a model is first used: all of them at once would be a good part of importing rxloop.
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema, with the docstrings of the fields as their descriptions.

        Read from the source when there is a schema to make. With pydantic's `use_attribute_docstrings` they would be
        read at every start, which takes a quarter of the time of importing rxloop.
        """
        made = handler(schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(made).get("properties", {})
        for base in reversed(cls.__mro__):
            for name, text in _field_docstrings(base).items():
                if name in cls.model_fields:
                    properties[cls.model_fields[name].serialization_alias or name]["description"] = text
        return made


@cache
def _field_docstrings(cls: type) -> dict[str, str]:
    """Return what stands in the source below each annotated name of a class."""
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


def _refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        "this is a part of an event, and events do not change: make a copy of it with copy.deepcopy(), and change that"
    )


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed; a copy of it is an ordinary dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed; a copy of it is an ordinary list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return thawed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


EMPTY_DICT, EMPTY_LIST = FrozenDict(), FrozenList()


def thawed(value: Any) -> Any:
    """Copy the value as ordinary dicts and lists, all of them new."""
    if isinstance(value, dict):
        return {key: thawed(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [thawed(item) for item in cast("list[Any]", value)]
    return value


P = ParamSpec("P")

M = TypeVar("M")

SLOTS: tuple[Callable[[BaseModel, Any], None], ...] = tuple(
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
"""Fill the slots of a model: its fields, the names of those that were given, and two that are None for most models."""

_set_dict, _set_given, _set_extra, _set_private = SLOTS

_new = object.__new__

_EMPTY: dict[Any, Any] = {dict: EMPTY_DICT, list: EMPTY_LIST}


def unchecked(model: Callable[P, M], *, settled: bool = False) -> Callable[P, M]:
    """The constructor of a model without its validation, at half the cost.

    It takes the same arguments, by the names of the fields, and they must have the types of the fields already: nothing
    is converted, copied or refused, and all fields count as given. Not for what a user, a tool or a vendor may have got
    wrong.

    Args:
        model: A model with neither computed nor private fields.
        settled: Mark what is made as settled: whoever makes it has seen to it that all values can be written as they
            are, and are frozen, so that nobody has to look at them again.
    """
    cls = cast("type[BaseModel]", model)
    plain = defaults(cls)
    made = tuple(
        (name, cast("Callable[[], Any]", field.default_factory))
        for name, field in cls.model_fields.items()
        if field.default_factory is not None and get_origin(field.default_factory) not in _EMPTY
    )

    # One for all, which nothing changes: a copy of a model copies it.
    given = set(plain)
    mark = cast("Any", cls)._settled.__set__ if settled else None

    def make(**values: Any) -> BaseModel:
        fields = plain | values
        for name, factory in made:
            if name not in values:
                fields[name] = factory()
        model = _new(cls)
        _set_dict(model, fields)
        _set_given(model, given)
        _set_extra(model, None)
        _set_private(model, None)
        if mark is not None:
            mark(model, True)
        return model

    return cast("Callable[P, M]", make)


def defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """The defaults of a model; what has none is there as None, so that the order is that of the fields.

    Empty dicts and lists are one for all, since nobody can change them.
    """
    return {
        name: None if field.is_required() else _EMPTY.get(get_origin(field.default_factory), field.default)
        for name, field in cls.model_fields.items()
    }


stamp: Callable[[BaseModel], dict[str, Any]] = attrgetter("__dict__")
"""The fields of an event, to write into in place, though events are frozen.

From its making to its publication an event belongs to one run alone, which writes into it what its maker could not
know: step and branch, numbers and time, and that a call is hidden. A copy for each would cost more than all the
rest of a token's way. Whoever writes a field of an event does it through this function, and only before anybody
else has the event; everybody else makes a copy, by `model_copy(update=...)`.
"""


def absent(value: Any) -> bool:
    """Tell whether an optional field is left out of the JSON."""
    return not value
