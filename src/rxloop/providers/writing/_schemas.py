"""The JSON Schema of a typed answer, as endpoints take it."""

from __future__ import annotations

import re
from typing import Any

from rxloop.pipeline.schemas import closing_keywords, with_subschemas

# The keywords that strict decoding knows: a request with another one is refused.
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

    An object that does not mention other properties may be closed, since they are ignored. A property may be required
    if it is, or if null stands for leaving it out. An object with free keys, another default, and a keyword that strict
    decoding does not know have no such form.
    """
    try:
        return _strict(schema)
    except _NotStrict:
        return None


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    given = dict(schema)
    if "default" in given and given.pop("default") is not None:
        raise _NotStrict
    if not _KNOWN.issuperset(given) or given.get("format", "date") not in _FORMATS:
        raise _NotStrict
    if "$ref" in given and not _BESIDE_REF.issuperset(given):
        # Only words may stand beside a reference, and strict decoding refuses even them.
        given = {key: value for key, value in given.items() if key not in ("title", "description")}
        if not _BESIDE_REF.issuperset(given):
            raise _NotStrict
    result = with_subschemas(given, _strict)
    if given.get("type") != "object":
        return result
    closing = closing_keywords(given)
    required = given.get("required", [])
    # A property that is not required, and whose default is not null, leaves that default to be guessed.
    if closing is None or any(
        name not in required and part.get("default", ...) is not None for name, part in given["properties"].items()
    ):
        raise _NotStrict
    return result | closing
