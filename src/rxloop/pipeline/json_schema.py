"""Checks values against JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from time import thread_time
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
_SECONDS = 2.0
"""Of the processor, that one check takes: a short schema can ask for more than anybody can do, and all runs of the
process would wait."""
_PER_CHARACTER = 0.003
"""What the search for a pattern takes at most for each character, as a part of what it took to compile it; measured. It
is linear in the text, but a short pattern may stand for very many states: `.{0,2000}x.{0,2000}y`."""
DEPTH = 100
_TOO_MUCH = "the value cannot be checked: its schema is too deep, or takes too long"


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
    """A check takes more than it may."""


class _Check:
    """One check; it ends, whatever the schema refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._until = thread_time() + _SECONDS

    def _spend(self, seconds: float = 0.0) -> None:
        if thread_time() + seconds > self._until:
            raise _TooMuch

    def misfit(self, value: Any, schema: Schema | bool, where: str, depth: int) -> str | None:
        """What is wrong with a part of the value."""
        self._spend()
        if depth > DEPTH:
            raise _TooMuch
        if isinstance(schema, bool):
            return None if schema else f"{_name(where)} is not to be there"
        if isinstance(value, BaseModel):
            value = value.model_dump(by_alias=True)
        schema = self._referred(schema)
        for part in schema.get("allOf", ()):
            if found := self.misfit(value, part, where, depth + 1):
                return found
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            found = [self.misfit(value, option, where, depth + 1) for option in options]
            if None not in found:
                return self._either(value, options, where) or found[0]
        return (
            _of_kind(value, schema, where)
            or self._unmatched(value, schema, where)
            or _within(value, schema, where)
            or self._inside(value, schema, where, depth)
        )

    def _referred(self, schema: Schema) -> Schema:
        """What a schema refers to, be it by way of others."""
        for _ in range(DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = resolved(reference, self._root) or {}
        raise _TooMuch

    def _unmatched(self, value: Any, schema: Schema, where: str) -> str | None:
        pattern = schema.get("pattern")
        if pattern is None or not isinstance(value, str):
            return None
        matches, seconds = _pattern(pattern)
        self._spend(seconds * _PER_CHARACTER * len(value))
        if matches is None or matches(value):
            return None
        return f"{_name(where)} is to match {pattern!r}, and {shown(value)} does not"

    def _either(self, value: Any, options: Sequence[Schema | bool], where: str) -> str | None:
        """One phrase for several plain types."""
        kinds = [self._kind(option) for option in options]
        if not all(isinstance(kind, str) for kind in kinds):
            return None
        return f"{_name(where)} is to be a JSON {' or '.join(cast('list[str]', kinds))}, not {shown(value)}"

    def _kind(self, schema: Schema | bool) -> Any:
        if isinstance(schema, bool):
            return None
        return self._referred(schema).get("type")

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


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> tuple[Callable[[str], bool] | None, float]:
    """Give what looks for a pattern in linear time, and how long it took to compile; None if that needs more."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    begun = thread_time()
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        matches = None
    return matches, thread_time() - begun


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
