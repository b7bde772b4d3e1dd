"""Finds what is wrong with JSON Schemas that somebody else has written, such as the client of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from rxloop.pipeline.json_schema import DEPTH, TYPES, Schema, resolved, shown


def flaw(schema: Any, kind: str | None = "object") -> str | None:
    """What is wrong with a JSON Schema that somebody else has written.

    Args:
        schema: The schema.
        kind: The type of what fits it; None for any.

    Returns:
        A phrase such as `properties.city.type cannot be 'text'`; None if nothing is.
    """
    if not isinstance(schema, Mapping):
        return f"it is to be a dict, not {shown(schema)}"
    root = cast("Schema", schema)
    if kind is not None and root.get("type", kind) != kind:
        return f"its type is to be {kind!r}, not {shown(root['type'])}"
    return next(_flaws(root, root, "", 0), None)


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(isinstance(each, kind) for each in cast("Any", value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    kinds: Any = [value] if isinstance(value, str) else value
    return _is_list_of(str)(kinds) and bool(kinds) and all(kind in TYPES for kind in kinds)


_BY_NAME = frozenset(("properties", "$defs", "definitions", "patternProperties"))
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_ONE = frozenset(("additionalProperties", "items", "not"))
_FORMS: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _is_list_of(object),
    "required": _is_list_of(str),
    "pattern": lambda value: isinstance(value, str),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_size),
    **dict.fromkeys(("minimum", "maximum"), _is_number),
}


def _flaws(schema: Any, root: Schema, where: str, depth: int) -> Iterator[str]:
    if isinstance(schema, bool) and where:
        return
    if not isinstance(schema, Mapping):
        yield f"{where} is to be a JSON Schema, not {shown(schema)}"
        return
    if depth > DEPTH:
        yield "it is nested too deep"
        return
    for keyword, value in cast("Mapping[Any, Any]", schema).items():
        place = f"{where}.{keyword}" if where else str(keyword)
        if keyword in _BY_NAME:
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Any", value)):
                yield f"{place} is to be a dict of schemas by name, not {shown(value)}"
                return
            inner = [(f"{place}.{name}", part) for name, part in cast("Mapping[str, Any]", value).items()]
        elif keyword in _SEVERAL:
            if not isinstance(value, list | tuple):
                yield f"{place} is to be a list of schemas, not {shown(value)}"
                return
            inner = [(f"{place}.{number}", part) for number, part in enumerate(cast("Sequence[Any]", value))]
        elif keyword in _ONE:
            inner = [(place, value)]
        else:
            inner = []
            if keyword in _FORMS and not _FORMS[keyword](value):
                yield f"{place} cannot be {shown(value)}"
            elif keyword == "$ref" and (not isinstance(value, str) or resolved(value, root) is None):
                yield f"{place}: there is nothing at {shown(value)} in this schema"
        for name, part in inner:
            yield from _flaws(part, root, name, depth + 1)
