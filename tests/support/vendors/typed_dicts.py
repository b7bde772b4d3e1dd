"""Whether JSON fits a `TypedDict` of somebody's SDK, strictly: no key unknown, none missing, each value of its type.

pydantic reads what is `Iterable` lazily, and lets keys pass that a `TypedDict` does not have.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import Annotated as Annotated  # noqa: UP035 - what SDKs use on older versions of Python
from typing_extensions import ReadOnly, get_type_hints, is_typeddict

_TELLING = ("type", "role")
_WRAPPERS = (Required, NotRequired, ReadOnly, Annotated)


def misfit(value: Any, wanted: Any, place: str = "body") -> str | None:
    """What does not fit, or None.

    Args:
        value: Parsed JSON.
        wanted: The type that it should have.
        place: Where it stands, for the words of the answer.
    """
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any or wanted is object:
        return None
    if origin in _WRAPPERS:
        return misfit(value, arguments[0], place)
    if origin in (Union, types.UnionType):
        return _misfit_of_union(value, arguments, place)
    if origin is Literal:
        return None if value in arguments else f"{place} is {value!r}, and not one of {arguments}"
    if is_typeddict(wanted):
        return _misfit_of_dict(value, wanted, place)
    if origin is not None and issubclass(origin, Mapping):
        return None if isinstance(value, dict) else f"{place} is no object"
    if origin is not None and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{place} is no list"
        each = ((n, part) for n, part in enumerate(value))
        return next((bad for n, part in each if (bad := misfit(part, arguments[0], f"{place}[{n}]"))), None)
    return _misfit_of_plain(value, wanted, place)


def _misfit_of_plain(value: Any, wanted: Any, place: str) -> str | None:
    if wanted is float and isinstance(value, int):
        return None
    if isinstance(value, bool) and wanted is not bool:
        return f"{place} is {value!r}, and not {wanted}"
    if wanted is None or wanted is type(None):
        return None if value is None else f"{place} is not null"
    if not isinstance(wanted, type):
        return None
    return None if isinstance(value, wanted) else f"{place} is {value!r}, and not {wanted}"


def _misfit_of_union(value: Any, variants: tuple[Any, ...], place: str) -> str | None:
    found: list[str] = []
    for each in variants:
        if (bad := misfit(value, each, place)) is None:
            return None
        found.append(bad)
    # The most telling one is that of the variant with the same type.
    same = [
        bad
        for bad, each in zip(found, variants, strict=True)
        if isinstance(value, dict)
        and is_typeddict(each)
        and misfit(value.get("type"), _hints(each).get("type", Any), "") is None
    ]
    return (same or found)[0]


def _misfit_of_dict(value: Any, wanted: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is no object"
    hints = _hints(wanted)
    free = getattr(wanted, "__pydantic_config__", {}).get("extra") == "allow"
    if not free and (unknown := value.keys() - hints.keys()):
        return f"{place} has {sorted(unknown)}, which {wanted.__name__} has not"
    if missing := wanted.__required_keys__ - value.keys():
        return f"{place} has no {sorted(missing)}"
    # What tells the variants of a union apart comes first: of most of them nothing else has to be looked at.
    names = [*(name for name in _TELLING if name in value), *(name for name in value if name not in _TELLING)]
    found = (misfit(value[name], hints[name], f"{place}.{name}") for name in names if name in hints)
    return next((bad for bad in found if bad), None)


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    # Evaluated once: those of a request take longer than all that is looked at by them.
    return get_type_hints(wanted, include_extras=True)
