"""Checks values against JSON Schemas, as far as those go that pydantic makes of Python types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

Schema = Mapping[str, Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": (list, tuple),
    "object": (Mapping, BaseModel),
    "null": type(None),
}


def misfit(value: Any, schema: Schema) -> str | None:
    """What is wrong with a value.

    Looks at `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
    `additionalProperties`, `items`, `minimum`, `maximum`, `minLength` and `maxLength`. What else a schema says is taken
    as kept: whoever asked for the value reads it again with the type that the schema was made of.

    Returns:
        A phrase such as `amount is to be a JSON integer, not 'ten'`; None if the value fits.
    """
    return _misfit(value, schema, schema, "")


def _misfit(value: Any, schema: Schema, root: Schema, where: str) -> str | None:
    if isinstance(value, BaseModel):
        value = value.model_dump(by_alias=True)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = _resolved(reference, root)
    for part in schema.get("allOf", ()):
        if found := _misfit(value, part, root, where):
            return found
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        found = [_misfit(value, option, root, where) for option in options]
        return None if None in found else _either(value, options, root, where) or found[0]
    return _of_kind(value, schema, where) or _within(value, schema, where) or _inside(value, schema, root, where)


def _either(value: Any, options: Sequence[Schema], root: Schema, where: str) -> str | None:
    """One phrase for several plain types."""
    kinds = [
        _resolved(option["$ref"], root).get("type") if "$ref" in option else option.get("type") for option in options
    ]
    if not all(isinstance(kind, str) for kind in kinds):
        return None
    return f"{_name(where)} is to be a JSON {' or '.join(cast('list[str]', kinds))}, not {value!r}"


def _of_kind(value: Any, schema: Schema, where: str) -> str | None:
    if "const" in schema and value != schema["const"]:
        return f"{_name(where)} is to be {schema['const']!r}, not {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{_name(where)} is to be one of {', '.join(map(repr, schema['enum']))}, not {value!r}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{_name(where)} is to be a JSON {' or '.join(kinds)}, not {value!r}"
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


def _within(value: Any, schema: Schema, where: str) -> str | None:
    size = len(value) if isinstance(value, str) else value if isinstance(value, int | float) else None
    if size is None:
        return None
    least, most = ("minLength", "maxLength") if isinstance(value, str) else ("minimum", "maximum")
    what = "the length of " if isinstance(value, str) else ""
    if least in schema and size < schema[least]:
        return f"{what}{_name(where)} is to be at least {schema[least]}, not {size!r}"
    if most in schema and size > schema[most]:
        return f"{what}{_name(where)} is to be at most {schema[most]}, not {size!r}"
    return None


def _inside(value: Any, schema: Schema, root: Schema, where: str) -> str | None:
    if isinstance(value, Mapping):
        return _fields(cast("Mapping[str, Any]", value), schema, root, where)
    if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            if found := _misfit(item, schema["items"], root, f"{where}[{index}]"):
                return found
    return None


def _fields(value: Mapping[str, Any], schema: Schema, root: Schema, where: str) -> str | None:
    known: Mapping[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{_name(where)} lacks {name!r}"
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        place = f"{where}.{name}" if where else name
        if name in known:
            found = _misfit(item, known[name], root, place)
        elif others is False:
            found = f"{_name(where)} has no {name!r}, only {', '.join(map(repr, known))}"
        else:
            found = _misfit(item, cast("Schema", others), root, place) if isinstance(others, Mapping) else None
        if found:
            return found
    return None


def _resolved(reference: str, root: Schema) -> Schema:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name, {})
    return found


def _name(where: str) -> str:
    return where or "the value"
