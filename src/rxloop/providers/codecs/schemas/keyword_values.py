"""Values of JSON Schema keywords in canonical form."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, cast

from rxloop.providers.codecs.fields import dumps
from rxloop.support.json_schema import is_valid_pattern

_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

_TEXTS = ("title", "description", "format", "$schema", "$id", "$comment", "$anchor")

_TYPE_NAMES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))

_TYPE_ALIASES = {
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


def _read_types(value: Any) -> Any:
    values: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    types: list[str] = []
    for value_ in values:
        if not isinstance(value_, str):
            continue
        type_name = value_ if value_ in _TYPE_NAMES else _TYPE_ALIASES.get(value_.lower(), value_.lower())
        if type_name not in _TYPE_NAMES:
            # Unknown types such as `any` make the list useless.
            return None
        if type_name not in types:
            types.append(type_name)
    if not types:
        return None
    return types if isinstance(value, list | tuple) and (len(types) > 1 or len(values) == 1) else types[0]


def _read_enum(value: Any) -> Any:
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


def _read_names(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return None
    return list(dict.fromkeys(name for name in cast("list[Any]", value) if isinstance(name, str)))


def _read_size(value: Any) -> Any:
    number = _read_number(value)
    return value if number is not None and number >= 0 and float(number).is_integer() else None


def _read_number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _read_limit(value: Any) -> Any:
    return value if isinstance(value, bool) else _read_number(value)


def _read_text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _read_pattern(value: Any) -> Any:
    """Return the pattern if it is a valid regular expression, because vendors reject invalid ones."""
    return value if isinstance(value, str) and is_valid_pattern(value) else None


def _read_name_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return {
        name: names for name, each in cast("dict[str, Any]", value).items() if (names := _read_names(each)) is not None
    }


NORMALISERS: dict[str, Callable[[Any], Any]] = {
    "type": _read_types,
    "enum": _read_enum,
    "required": _read_names,
    "pattern": _read_pattern,
    "dependentRequired": _read_name_lists,
    "uniqueItems": lambda value: value if isinstance(value, bool) else None,
    "multipleOf": lambda value: kept if (kept := _read_number(value)) and kept > 0 else None,
    **dict.fromkeys(_SIZES, _read_size),
    **dict.fromkeys(("minimum", "maximum"), _read_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _read_limit),
    **dict.fromkeys(_TEXTS, _read_text),
}
"""By keyword: returns the canonical value, or None if the value is invalid."""
