"""Models made without validation, of values that the library itself has made or checked."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, cast, get_origin

from pydantic import BaseModel

from rxloop.protocol.frozen import EMPTY_DICT, EMPTY_LIST

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
