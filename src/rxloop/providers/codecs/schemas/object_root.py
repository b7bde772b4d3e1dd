"""Conversion of tool parameters to a schema with one object at the root."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import orjson

from rxloop.providers.codecs.schemas.dialects import Dialect
from rxloop.providers.codecs.schemas.normal_form import DEPTH, Notes, Schema, target_of

VALUE = "value"
"""Argument name used for non-object schemas."""

_LONGEST = 2_000
"""Maximum length of conditions in descriptions, in characters."""

_CONDITIONS = ("anyOf", "oneOf", "if", "enum", "const", "not", "dependentSchemas")

_FROM_ROOT = "The arguments must also fit this JSON Schema: "


class _Object(NamedTuple):
    """Known object properties."""

    properties: Schema
    required: list[str]
    closed: bool


def object_root(schema: Schema, dialect: Dialect, notes: Notes) -> Schema | None:
    """Return a schema with an object at its root that accepts every object that the given schema accepts.

    Return None if the given schema accepts no object.

    Args:
        schema: A normalised schema.
        dialect: JSON Schema dialect of the vendor.
        notes: Collects the changes.
    """
    excluded = [name for name in schema if name in dialect.root_excludes]
    if not excluded and schema.get("type") == "object":
        return _complete(schema, schema, dialect, notes)
    defs: Schema = schema.get("$defs", {})
    found = _Merger(defs).merged(schema)
    if found is None:
        return None
    kept = {name: value for name, value in schema.items() if name not in dialect.root_excludes}
    if schema.get("type") != "object":
        notes.add("", f"type {schema.get('type')!r} is sent as 'object'" if "type" in schema else "type is added")
    made = _as_object(kept, found)
    if "description" not in made and "$ref" in schema and (words := _words(schema["$ref"], defs)):
        made["description"] = words
    if defs:
        made["$defs"] = defs
    if excluded:
        names = ", ".join(excluded)
        notes.add("", f"{names}: the parameters of all alternatives are sent as one object, each checked when called")
        if found.properties:
            _describe_root(made, {name: schema[name] for name in excluded}, defs)
    return _complete(made, schema, dialect, notes)


def merged_object(schema: Schema, keys: Collection[str], defs: Schema) -> Schema | None:
    """Merge keywords into a single object. Return None for other types."""
    found = _Merger(defs).merged(schema)
    if found is None or not (found.properties or schema.get("type") == "object"):
        return None
    return _as_object({name: value for name, value in schema.items() if name not in keys}, found)


def _as_object(kept: Schema, found: _Object) -> Schema:
    made: Schema = {"type": "object"}
    made |= {name: value for name, value in kept.items() if name not in ("type", "properties", "required", "$defs")}
    made["properties"] = found.properties
    if found.required:
        made["required"] = found.required
    if found.closed:
        made["additionalProperties"] = False
    return made


def _complete(made: Schema, given: Schema, dialect: Dialect, notes: Notes) -> Schema:
    fields: Schema | None = made.get("properties")
    added: Schema = {name: {} for name in made.get("required", ()) if name not in (fields or {})}
    if fields is None and (dialect.needs_properties or added):
        notes.add("", "properties is added")
    if added:
        notes.add("properties", f"{', '.join(added)} is added, since it is required")
    if added or (fields is None and dialect.needs_properties):
        return {**made, "properties": {**(fields or {}), **added}}
    return made


def _words(reference: str, defs: Schema) -> str | None:
    return (target_of(reference, defs) or {}).get("description")


def _describe_root(made: Schema, conditions: Schema, defs: Schema) -> None:
    """Describe alternatives, because the merged parameters lose their grouping."""
    target = conditions.pop("$ref", None)
    if isinstance(target, str) and (found := target_of(target, defs)) is not None:
        conditions = {"allOf": [found, conditions]}
    text = orjson.dumps(conditions, default=str).decode()
    # Only alternatives and conditions are added, because unconditional parameters are complete.
    if len(text) <= _LONGEST and any(f'"{name}":' in text for name in _CONDITIONS):
        made["description"] = "\n\n".join(filter(None, (made.get("description"), _FROM_ROOT + text)))


def wrapped_root(schema: Schema, notes: Notes) -> Schema:
    """Return an object with the given schema as its only property."""
    notes.add("", f"it is not an object, so its value is the argument {VALUE!r}")
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    made: Schema = {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    return {**made, "$defs": schema["$defs"]} if "$defs" in schema else made


_NOTHING = _Object({}, [], closed=False)


class _Merger:
    """Merges object properties, using shared `$defs`."""

    def __init__(self, defs: Schema) -> None:
        self._defs = defs
        self._known: dict[str, _Object | None] = {}

    def merged(self, schema: Schema, depth: int = 0) -> _Object | None:
        """Return the properties of matching objects, or None if there cannot be any."""
        if depth > DEPTH:
            return _NOTHING
        if "not" in schema and schema["not"] == {}:
            return None
        kinds = schema.get("type", "object")
        if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
            return None
        given: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
        values = None if given is None else [cast("Schema", value) for value in given if isinstance(value, dict)]
        if values == []:
            return None
        parts: list[_Object | None] = [_own(schema)]
        if (reference := schema.get("$ref")) is not None:
            parts.append(self._referred(reference, depth + 1))
        parts += [self.merged(part, depth + 1) for part in schema.get("allOf", ())]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                parts.append(_any_of([self.merged(part, depth + 1) for part in schema[key]]))
        if values is not None:
            parts.append(_of_values(values))
        if None in parts:
            return None
        whole = _all_of([part for part in parts if part is not None])
        return _with_conditions(whole, [self.merged(part, depth + 1) for part in _conditions(schema)])

    def _referred(self, reference: str, depth: int) -> _Object | None:
        if reference not in self._known:
            # A recursive reference adds nothing to its own properties.
            self._known[reference] = _NOTHING
            self._known[reference] = self.merged(target_of(reference, self._defs) or {}, depth)
        return self._known[reference]


def _conditions(schema: Schema) -> list[Schema]:
    """Return the schemas inside a schema that apply conditionally."""
    parts = [schema[key] for key in ("then", "else", "if") if isinstance(schema.get(key), dict)]
    dependent: Schema = schema.get("dependentSchemas", {})
    return [*parts, *dependent.values()]


def _with_conditions(whole: _Object, parts: Sequence[_Object | None]) -> _Object:
    """Add the properties of conditional schemas. Unconditional properties are not changed."""
    more = _any_of([part for part in parts if part is not None]) or _NOTHING
    if not more.properties.keys() - whole.properties.keys():
        return whole
    return whole._replace(properties={**more.properties, **whole.properties})


def _own(schema: Schema) -> _Object:
    closed = schema.get("additionalProperties") is False
    return _Object(schema.get("properties", {}), schema.get("required", []), closed)


def _of_values(values: Sequence[Schema]) -> _Object:
    fields: dict[str, list[Any]] = {}
    for name, value in ((name, value) for each in values for name, value in each.items()):
        known = fields.setdefault(name, [])
        if value not in known:
            known.append(value)
    required = [name for name in fields if all(name in each for each in values)]
    return _Object({name: {"enum": known} for name, known in fields.items()}, required, closed=True)


def _all_of(parts: Sequence[_Object]) -> _Object:
    """Combine schemas that all apply."""
    fields: Schema = {}
    for name, part in _fields(parts):
        if name not in fields or fields[name] == {}:
            fields[name] = part
        elif part not in ({}, fields[name]):
            fields[name] = _joined("allOf", fields[name], part)
    required = dict.fromkeys(name for part in parts for name in part.required)
    # Closed parts would exclude each other's properties, which is not intended.
    return _Object(fields, list(required), closed=any(part.closed for part in parts))


def _any_of(parts: Sequence[_Object | None]) -> _Object | None:
    """Combine alternative schemas."""
    fitting = [part for part in parts if part is not None]
    if not fitting:
        return None
    fields: Schema = {}
    for name, part in _fields(fitting):
        if name not in fields:
            fields[name] = part
        elif {} in (part, fields[name]):
            fields[name] = {}
        elif part != fields[name]:
            fields[name] = _joined("anyOf", fields[name], part)
    required = [name for name in fitting[0].required if all(name in part.required for part in fitting)]
    return _Object(fields, required, closed=all(part.closed for part in fitting))


def _fields(parts: Sequence[_Object]) -> Iterator[tuple[str, Schema]]:
    return ((name, field) for part in parts for name, field in part.properties.items())


def _joined(key: str, first: Schema, second: Schema) -> Schema:
    """Combine two property schemas."""
    if key == "anyOf" and (values := _constants(first, second)) is not None:
        return values
    known: list[Schema] = first[key] if first.keys() == {key} else [first]
    return first if second in known else {key: [*known, second]}


def _constants(first: Schema, second: Schema) -> Schema | None:
    """Combine constants used as discriminators."""
    listed: list[Any] = []
    for part in (first, second):
        if part.keys() - {"const", "enum", "type", "title", "default"} or not part.keys() & {"const", "enum"}:
            return None
        listed += [part["const"]] if "const" in part else part["enum"]
    kinds = {str(part.get("type")) for part in (first, second)}
    kind = {"type": first["type"]} if "type" in first and len(kinds) == 1 else {}
    return {**kind, "enum": list({repr(value): value for value in listed}.values())}
