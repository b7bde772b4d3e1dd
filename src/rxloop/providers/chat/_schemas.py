"""The JSON Schema of a typed answer, as endpoints take it."""

from __future__ import annotations

import re
from typing import Any, cast

_NAMED = ("properties", "$defs")
_DATA = ("const", "enum", "required")
# What strict decoding knows; with any other keyword a request for it is refused.
_KNOWN = frozenset(
    [
        "type",
        "title",
        "description",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "enum",
        "const",
        "$ref",
        "$defs",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
    ]
)
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
_BESIDE_REF = frozenset(("$ref", "$defs"))


class _NotStrict(Exception):
    """The schema has no strict form that means the same."""


def response_format(schema: dict[str, Any], can_be_strict: bool) -> dict[str, Any]:
    """The `response_format` that asks for answers that fit a schema.

    Args:
        schema: Has an object at its root.
        can_be_strict: Whether the endpoint takes `strict`.
    """
    name = re.sub("[^0-9A-Za-z_-]+", "_", str(schema.get("title", ""))).strip("_")[:64] or "answer"
    asked: dict[str, Any] = {"name": name, "schema": schema}
    if can_be_strict:
        strict = strict_form(schema)
        asked |= {"schema": schema if strict is None else strict, "strict": strict is not None}
    return {"type": "json_schema", "json_schema": asked}


def strict_form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with every object closed and every property required; None where that would change its meaning.

    An object that says nothing of other properties may be closed, since they are ignored. A property may be required if
    it is, or if null stands for leaving it out. A free object, another default, and a keyword that strict decoding does
    not know have no such form.
    """
    try:
        return _strict(schema)
    except _NotStrict:
        return None


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(part) for part in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    given = dict(cast("dict[str, Any]", node))
    if "default" in given and given.pop("default") is not None:
        raise _NotStrict
    if not _KNOWN.issuperset(given) or given.get("format", "date") not in _FORMATS:
        raise _NotStrict
    if "$ref" in given and not _BESIDE_REF.issuperset(given):
        # Only words may stand beside a reference, and strict decoding refuses even them.
        given = {key: value for key, value in given.items() if key not in ("title", "description")}
        if not _BESIDE_REF.issuperset(given):
            raise _NotStrict
    result: dict[str, Any] = {}
    for key, value in given.items():
        if key in _NAMED:
            result[key] = {name: _strict(part) for name, part in value.items()}
        else:
            result[key] = value if key in _DATA else _strict(value)
    return result | _closed(given) if given.get("type") == "object" else result


def _closed(given: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] | None = given.get("properties")
    if properties is None or given.get("additionalProperties", False) is not False:
        raise _NotStrict
    required = given.get("required", [])
    # One that is not required and has no default of null leaves its default to be guessed.
    if any(name not in required and part.get("default", ...) is not None for name, part in properties.items()):
        raise _NotStrict
    return {"additionalProperties": False, "required": list(properties)}
