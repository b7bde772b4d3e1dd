"""Strict validation of JSON against a `TypedDict` of an SDK.

Rejects unknown and missing keys and invalid values. Pydantic reads `Iterable` values lazily and accepts unknown keys.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import Annotated as Annotated  # noqa: UP035 - what SDKs use on older versions of Python
from typing_extensions import ReadOnly, get_type_hints, is_typeddict

_TAGS = ("type", "role")
_WRAPPERS = (Required, NotRequired, ReadOnly, Annotated)


def find_mismatch(value: Any, wanted: Any, place: str = "body") -> str | None:
    """Return a description of the first mismatch, or None.

    Args:
        value: Parsed JSON.
        wanted: Expected type.
        place: Path of the value, for the description.
    """
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any or wanted is object:
        return None
    if origin in _WRAPPERS:
        return find_mismatch(value, arguments[0], place)
    if origin in (Union, types.UnionType):
        return _find_union_mismatch(value, arguments, place)
    if origin is Literal:
        return None if value in arguments else f"{place} is {value!r}, and not one of {arguments}"
    if is_typeddict(wanted):
        return _find_dict_mismatch(value, wanted, place)
    if origin is not None and issubclass(origin, Mapping):
        return None if isinstance(value, dict) else f"{place} is no object"
    if origin is not None and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{place} is no list"
        each = ((n, part) for n, part in enumerate(value))
        return next((bad for n, part in each if (bad := find_mismatch(part, arguments[0], f"{place}[{n}]"))), None)
    return _find_plain_mismatch(value, wanted, place)


def _find_plain_mismatch(value: Any, wanted: Any, place: str) -> str | None:
    if wanted is float and isinstance(value, int):
        return None
    if isinstance(value, bool) and wanted is not bool:
        return f"{place} is {value!r}, and not {wanted}"
    if wanted is None or wanted is type(None):
        return None if value is None else f"{place} is not null"
    if not isinstance(wanted, type):
        return None
    return None if isinstance(value, wanted) else f"{place} is {value!r}, and not {wanted}"


def _find_union_mismatch(value: Any, variants: tuple[Any, ...], place: str) -> str | None:
    found: list[str] = []
    for each in variants:
        if (bad := find_mismatch(value, each, place)) is None:
            return None
        found.append(bad)
    # Prefer the error of the variant with a matching `type`.
    same = [
        bad
        for bad, each in zip(found, variants, strict=True)
        if isinstance(value, dict)
        and is_typeddict(each)
        and find_mismatch(value.get("type"), _hints(each).get("type", Any), "") is None
    ]
    return (same or found)[0]


def _find_dict_mismatch(value: Any, wanted: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is no object"
    hints = _hints(wanted)
    free = getattr(wanted, "__pydantic_config__", {}).get("extra") == "allow"
    if not free and (unknown := value.keys() - hints.keys()):
        return f"{place} has {sorted(unknown)}, which {wanted.__name__} has not"
    if missing := wanted.__required_keys__ - value.keys():
        return f"{place} has no {sorted(missing)}"
    # Checking the discriminator first excludes most variants.
    names = [
        *(name for name in _TAGS if name in value),
        *(name for name in value if name not in _TAGS),
    ]
    found = (find_mismatch(value[name], hints[name], f"{place}.{name}") for name in names if name in hints)
    return next((bad for bad in found if bad), None)


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    # Cached because evaluating hints is slower than validation.
    return get_type_hints(wanted, include_extras=True)
