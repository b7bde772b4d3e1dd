"""JSON Schemas as trees of schemas, and the objects in them as strict decoding wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

_NAMED = frozenset(["properties", "$defs", "patternProperties", "dependentSchemas"])
"""Keywords whose value maps names to schemas."""
_DATA = frozenset(["default", "const", "enum", "examples", "required", "discriminator"])
"""Keywords whose value is data, in which nothing is a schema."""


def with_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy of a schema in which each schema directly inside it is what `change` makes of that one."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(part) for part in cast("list[Any]", value)]
        return change(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED:
            result[key] = {name: changed(part) for name, part in value.items()}
        else:
            result[key] = value if key in _DATA else changed(value)
    return result


def closing_keywords(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The keywords that close an object and require all its properties, as strict decoding asks for.

    Returns:
        None if the object has free keys: then it cannot be closed.
    """
    if schema.get("properties") is None or schema.get("additionalProperties", False) is not False:
        return None
    return {"additionalProperties": False, "required": list(schema["properties"])}
