"""Values of JSON Schema keywords in canonical form."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, cast

from rxloop.providers.codecs.fields import dumps

_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

_TEXTS = ("title", "description", "format", "$schema", "$id", "$comment", "$anchor")

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))

_OTHER_TYPES = {
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "str": "string",
    "text": "string",
    "dict": "object",
    "map": "object",
    "list": "array",
    "none": "null",
}


def _kinds(value: Any) -> Any:
    several: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    known: list[str] = []
    for each in several:
        if not isinstance(each, str):
            continue
        kind = each if each in _TYPES else _OTHER_TYPES.get(each.lower(), each.lower())
        if kind not in _TYPES:
            # Unknown types such as `any` make the list useless.
            return None
        if kind not in known:
            known.append(kind)
    if not known:
        return None
    return known if isinstance(value, list | tuple) and (len(known) > 1 or len(several) == 1) else known[0]


def _values(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not is_json(value):
        return None
    # Compare the representations, because True equals 1.
    return list({repr(each): each for each in cast("list[Any]", value)}.values()) or None


def is_json(value: Any) -> bool:
    """Return True if a value can be encoded as JSON."""
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _names(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return None
    return list(dict.fromkeys(name for name in cast("list[Any]", value) if isinstance(name, str)))


def _size(value: Any) -> Any:
    number = _number(value)
    return value if number is not None and number >= 0 and float(number).is_integer() else None


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _limit(value: Any) -> Any:
    return value if isinstance(value, bool) else _number(value)


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _pattern(value: Any) -> Any:
    """Return the pattern if it is a valid regular expression, because vendors reject invalid ones."""
    if not isinstance(value, str):
        return None
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return None
    return value


def _by_names(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return {name: names for name, each in cast("dict[str, Any]", value).items() if (names := _names(each)) is not None}


FORMS: dict[str, Callable[[Any], Any]] = {
    "type": _kinds,
    "enum": _values,
    "required": _names,
    "pattern": _pattern,
    "dependentRequired": _by_names,
    "uniqueItems": lambda value: value if isinstance(value, bool) else None,
    "multipleOf": lambda value: kept if (kept := _number(value)) and kept > 0 else None,
    **dict.fromkeys(_SIZES, _size),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _limit),
    **dict.fromkeys(_TEXTS, _text),
}
"""By keyword: returns the canonical value, or None if the value is invalid."""
