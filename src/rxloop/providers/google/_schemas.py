"""JSON Schemas as Gemini takes them: what it does not know is left out, or said in a keyword that it knows."""

from __future__ import annotations

from typing import Any

from rxloop.pipeline.schemas import with_subschemas

_UNKNOWN = frozenset(["$schema", "discriminator", "examples", "exclusiveMinimum", "exclusiveMaximum"])
"""Keywords that it refuses, or that are no part of what it documents."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def gemini_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for `parametersJsonSchema` and `responseJsonSchema`."""
    made = with_subschemas({key: value for key, value in schema.items() if key not in _UNKNOWN}, gemini_schema)
    if "const" in made:
        # It knows no constants, but a choice of one.
        value = made.pop("const")
        made["enum"] = [value]
        if "type" not in made and value.__class__ in _TYPES:
            made["type"] = _TYPES[value.__class__]
    return made
