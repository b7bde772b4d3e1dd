"""Checks values against JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from pydantic import BaseModel

Schema = Mapping[str, Any]

TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": (list, tuple),
    "object": (Mapping, BaseModel),
    "null": type(None),
}
_STEPS = 300_000
"""The parts of schemas that one check looks at: a short schema that refers to itself can ask for more than anybody can
do, and all runs of the process would wait."""
DEPTH = 100
_TOO_MUCH = "the value cannot be checked: its schema is too deep, or takes too many steps"


def misfit(value: Any, schema: Schema) -> str | None:
    """What is wrong with a value.

    Looks at `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
    `additionalProperties`, `items`, `pattern`, and the limits of numbers and of lengths. What else a schema says is
    taken as kept: whoever asked for the value reads it again with the type that the schema was made of.

    Returns:
        A phrase such as `amount is to be a JSON integer, not 'ten'`; None if the value fits.
    """
    try:
        return _Check(schema).misfit(value, schema, "", 0)
    except _TooMuch:
        return _TOO_MUCH


class _TooMuch(Exception):
    """A check takes more steps than it may."""


class _Check:
    """One check; it ends, whatever the schema refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _STEPS

    def misfit(self, value: Any, schema: Schema | bool, where: str, depth: int) -> str | None:
        """What is wrong with a part of the value."""
        self._left -= 1
        if self._left < 0 or depth > DEPTH:
            raise _TooMuch
        if isinstance(schema, bool):
            return None if schema else f"{_name(where)} is not to be there"
        if isinstance(value, BaseModel):
            value = value.model_dump(by_alias=True)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = resolved(reference, self._root) or {}
        for part in schema.get("allOf", ()):
            if found := self.misfit(value, part, where, depth + 1):
                return found
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            found = [self.misfit(value, option, where, depth + 1) for option in options]
            if None not in found:
                return self._either(value, options, where) or found[0]
        return (
            _of_kind(value, schema, where) or _within(value, schema, where) or self._inside(value, schema, where, depth)
        )

    def _either(self, value: Any, options: Sequence[Schema | bool], where: str) -> str | None:
        """One phrase for several plain types."""
        kinds = [self._kind(option) for option in options]
        if not all(isinstance(kind, str) for kind in kinds):
            return None
        return f"{_name(where)} is to be a JSON {' or '.join(cast('list[str]', kinds))}, not {shown(value)}"

    def _kind(self, schema: Schema | bool) -> Any:
        if isinstance(schema, bool):
            return None
        return ((resolved(schema["$ref"], self._root) or {}) if "$ref" in schema else schema).get("type")

    def _inside(self, value: Any, schema: Schema, where: str, depth: int) -> str | None:
        if isinstance(value, Mapping):
            return self._fields(cast("Mapping[str, Any]", value), schema, where, depth)
        if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping | bool):
            first = len(schema.get("prefixItems", ()))
            for index, item in enumerate(cast("Sequence[Any]", value)[first:], start=first):
                if found := self.misfit(item, schema["items"], f"{where}[{index}]", depth + 1):
                    return found
        return None

    def _fields(self, value: Mapping[str, Any], schema: Schema, where: str, depth: int) -> str | None:
        known: Mapping[str, Schema] = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{_name(where)} lacks {name!r}"
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            others = True
        for name, item in value.items():
            place = f"{where}.{name}" if where else name
            if name in known:
                found = self.misfit(item, known[name], place, depth + 1)
            elif others is False:
                found = f"{_name(where)} has no {name!r}, only {', '.join(map(repr, known))}"
            else:
                found = self.misfit(item, others, place, depth + 1) if others is not True else None
            if found:
                return found
        return None


def _of_kind(value: Any, schema: Schema, where: str) -> str | None:
    if "const" in schema and value != schema["const"]:
        return f"{_name(where)} is to be {schema['const']!r}, not {shown(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{_name(where)} is to be one of {', '.join(map(repr, schema['enum']))}, not {shown(value)}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{_name(where)} is to be a JSON {' or '.join(kinds)}, not {shown(value)}"
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, object))


def _within(value: Any, schema: Schema, where: str) -> str | None:
    if isinstance(value, str):
        pattern = schema.get("pattern")
        if pattern is not None and not _found(pattern, value):
            return f"{_name(where)} is to match {pattern!r}, and {shown(value)} does not"
        return _between(len(value), schema, "minLength", "maxLength", f"the length of {_name(where)}")
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return _between(len(items), schema, "minItems", "maxItems", f"the length of {_name(where)}")
    if not isinstance(value, int | float):
        return None
    more, less = _limit(schema, "exclusiveMinimum"), _limit(schema, "exclusiveMaximum")
    if more is not None and value <= more:
        return f"{_name(where)} is to be more than {more}, not {shown(value)}"
    if less is not None and value >= less:
        return f"{_name(where)} is to be less than {less}, not {shown(value)}"
    return _between(value, schema, "minimum", "maximum", _name(where))


def _limit(schema: Schema, name: str) -> float | None:
    limit = schema.get(name)
    # In old schemas it is true or false, and says how `minimum` is meant.
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _between(size: float, schema: Schema, least: str, most: str, what: str) -> str | None:
    if least in schema and size < schema[least]:
        return f"{what} is to be at least {schema[least]}, not {size!r}"
    if most in schema and size > schema[most]:
        return f"{what} is to be at most {schema[most]}, not {size!r}"
    return None


def _found(pattern: str, text: str) -> bool:
    validator = _pattern(pattern)
    return validator is None or validator(text)


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Callable[[str], bool] | None:
    """Give what looks for a pattern in linear time, whoever wrote it; None if that needs more."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        return None


def resolved(reference: str, root: Schema) -> Schema | None:
    """What a reference inside the schema leads to."""
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = cast("Schema", found).get(name.replace("~1", "/").replace("~0", "~"))
    return cast("Schema", found) if isinstance(found, Mapping) else None


def _name(where: str) -> str:
    return where or "the value"


def shown(value: Any) -> str:
    """A value in an error, cut short."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
