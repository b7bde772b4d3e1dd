"""Conversion of tool parameters to a schema with one object at the root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from rxloop.providers.codecs.schemas.dialects import Dialect
from rxloop.providers.codecs.schemas.normal_form import MAX_DEPTH, Notes, Schema, resolve_reference

VALUE = "value"
"""Argument name used for non-object schemas."""

_MAX_CONDITION_LENGTH = 2_000
"""Maximum length of conditions in descriptions, in characters."""

_CONDITION_KEYWORDS = ("anyOf", "oneOf", "if", "enum", "const", "not", "dependentSchemas")

_VALUES = ("const", "enum")

_FROM_ROOT = "The arguments must also fit this JSON Schema: "


class _Object(NamedTuple):
    """Known object properties."""

    properties: Schema
    required: list[str]
    closed: bool


def to_object_root(schema: Schema, dialect: Dialect, notes: Notes) -> Schema | None:
    """Return a schema with an object at its root that accepts every object that the given schema accepts.

    Return None if the given schema accepts no object.

    Args:
        schema: A normalised schema.
        dialect: JSON Schema dialect of the vendor.
        notes: Collects the changes.
    """
    excluded = [name for name in schema if name in dialect.root_excludes]
    if not excluded and schema.get("type") == "object":
        return _complete_properties(schema, schema, dialect, notes)
    defs: Schema = schema.get("$defs", {})
    merged = _Merger(defs).merge(schema)
    if merged is None:
        return None
    remaining = {name: value for name, value in schema.items() if name not in dialect.root_excludes}
    if schema.get("type") != "object":
        notes.add("", f"type {schema.get('type')!r} is sent as 'object'" if "type" in schema else "type is added")
    result = _make_object(remaining, merged)
    if "description" not in result and "$ref" in schema and (description := _find_description(schema["$ref"], defs)):
        result["description"] = description
    if defs:
        result["$defs"] = defs
    if excluded:
        names = ", ".join(excluded)
        notes.add("", f"{names}: the parameters of all alternatives are sent as one object, each checked when called")
        if merged.properties:
            _describe_root(result, {name: schema[name] for name in excluded}, defs)
    return _complete_properties(result, schema, dialect, notes)


def merge_object(schema: Schema, keys: Collection[str], defs: Schema) -> Schema | None:
    """Merge keywords into a single object. Return None for other types."""
    merged = _Merger(defs).merge(schema)
    if merged is None or not (merged.properties or schema.get("type") == "object"):
        return None
    return _make_object({name: value for name, value in schema.items() if name not in keys}, merged)


def _make_object(extra: Schema, merged: _Object) -> Schema:
    schema: Schema = {"type": "object"}
    schema |= {name: value for name, value in extra.items() if name not in ("type", "properties", "required", "$defs")}
    schema["properties"] = merged.properties
    if merged.required:
        schema["required"] = merged.required
    if merged.closed:
        schema["additionalProperties"] = False
    return schema


def _complete_properties(schema: Schema, original: Schema, dialect: Dialect, notes: Notes) -> Schema:
    fields: Schema | None = schema.get("properties")
    added: Schema = {name: {} for name in schema.get("required", ()) if name not in (fields or {})}
    if fields is None and (dialect.needs_properties or added):
        notes.add("", "properties is added")
    if added:
        notes.add("properties", f"{', '.join(added)} is added, since it is required")
    if added or (fields is None and dialect.needs_properties):
        return {**schema, "properties": {**(fields or {}), **added}}
    return schema


def _find_description(reference: str, defs: Schema) -> str | None:
    return (resolve_reference(reference, defs) or {}).get("description")


def _describe_root(schema: Schema, conditions: Schema, defs: Schema) -> None:
    """Describe alternatives, because the merged parameters lose their grouping."""
    target = conditions.pop("$ref", None)
    if isinstance(target, str) and (referenced := resolve_reference(target, defs)) is not None:
        conditions = {"allOf": [referenced, conditions]}
    text = orjson.dumps(conditions, default=str).decode()
    # Only alternatives and conditions are added, because unconditional parameters are complete.
    if len(text) <= _MAX_CONDITION_LENGTH and any(f'"{name}":' in text for name in _CONDITION_KEYWORDS):
        schema["description"] = "\n\n".join(filter(None, (schema.get("description"), _FROM_ROOT + text)))


def wrap_root(schema: Schema, notes: Notes) -> Schema:
    """Return an object with the given schema as its only property."""
    notes.add("", f"it is not an object, so its value is the argument {VALUE!r}")
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    root: Schema = {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    return {**root, "$defs": schema["$defs"]} if "$defs" in schema else root


_EMPTY = _Object({}, [], closed=False)


class _Merger:
    """Merges object properties, using shared `$defs`."""

    def __init__(self, defs: Schema) -> None:
        self._defs = defs
        self._cache: dict[str, _Object | None] = {}

    def merge(self, schema: Schema, depth: int = 0) -> _Object | None:
        """Return the properties of matching objects, or None if there cannot be any."""
        if depth > MAX_DEPTH:
            return _EMPTY
        if "not" in schema and schema["not"] == {}:
            return None
        kinds = schema.get("type", "object")
        if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
            return None
        allowed: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
        values = None if allowed is None else [cast("Schema", value) for value in allowed if isinstance(value, dict)]
        if values == []:
            return None
        parts: list[_Object | None] = [_from_schema(schema)]
        if (reference := schema.get("$ref")) is not None:
            parts.append(self._merge_reference(reference, depth + 1))
        parts += [self.merge(part, depth + 1) for part in schema.get("allOf", ())]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                parts.append(_combine_any([self.merge(part, depth + 1) for part in schema[key]]))
        if values is not None:
            parts.append(_from_values(values))
        if None in parts:
            return None
        combined = _combine_all([part for part in parts if part is not None])
        return _add_conditions(combined, [self.merge(part, depth + 1) for part in _list_conditions(schema)])

    def _merge_reference(self, reference: str, depth: int) -> _Object | None:
        if reference not in self._cache:
            # A recursive reference adds nothing to its own properties.
            self._cache[reference] = _EMPTY
            self._cache[reference] = self.merge(resolve_reference(reference, self._defs) or {}, depth)
        return self._cache[reference]


def _list_conditions(schema: Schema) -> list[Schema]:
    """Return the schemas inside a schema that apply conditionally."""
    parts = [schema[key] for key in ("then", "else", "if") if isinstance(schema.get(key), dict)]
    dependent: Schema = schema.get("dependentSchemas", {})
    return [*parts, *dependent.values()]


def _add_conditions(base: _Object, parts: Sequence[_Object | None]) -> _Object:
    """Add the properties of conditional schemas. Unconditional properties are not changed."""
    conditional = _combine_any([part for part in parts if part is not None]) or _EMPTY
    if not conditional.properties.keys() - base.properties.keys():
        return base
    return base._replace(properties={**conditional.properties, **base.properties})


def _from_schema(schema: Schema) -> _Object:
    closed = schema.get("additionalProperties") is False
    return _Object(schema.get("properties", {}), schema.get("required", []), closed)


def _from_values(values: Sequence[Schema]) -> _Object:
    fields: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for name, value in ((name, value) for each in values for name, value in each.items()):
        fields.setdefault(name, {}).setdefault(repr(value), value)
        counts[name] += 1
    required = [name for name in fields if counts[name] == len(values)]
    return _Object({name: {"enum": list(seen.values())} for name, seen in fields.items()}, required, closed=True)


def _combine_all(parts: Sequence[_Object]) -> _Object:
    """Combine schemas that all apply."""
    fields: dict[str, _Combination] = {}
    for name, part in _fields(parts):
        if name not in fields or fields[name].is_empty:
            fields[name] = _Combination("allOf", part)
        elif part != {}:
            fields[name].add(part)
    required = dict.fromkeys(name for part in parts for name in part.required)
    # Closed parts would exclude each other's properties, which is not intended.
    return _Object(_build(fields), list(required), closed=any(part.closed for part in parts))


def _combine_any(parts: Sequence[_Object | None]) -> _Object | None:
    """Combine alternative schemas."""
    fitting = [part for part in parts if part is not None]
    if not fitting:
        return None
    fields: dict[str, _Combination] = {}
    for name, part in _fields(fitting):
        if name not in fields or (part == {} and not fields[name].is_empty):
            fields[name] = _Combination("anyOf", part)
        elif not fields[name].is_empty:
            fields[name].add(part)
    counts = Counter(name for part in fitting for name in dict.fromkeys(part.required))
    required = [name for name in fitting[0].required if counts[name] == len(fitting)]
    return _Object(_build(fields), required, closed=all(part.closed for part in fitting))


def _fields(parts: Sequence[_Object]) -> Iterator[tuple[str, Schema]]:
    return ((name, field) for part in parts for name, field in part.properties.items())


def _build(fields: Mapping[str, _Combination]) -> Schema:
    return {name: combination.build() for name, combination in fields.items()}


class _Combination:
    """Schemas of one property that are combined one after the other, without comparing each of them with all others."""

    def __init__(self, key: str, first: Schema) -> None:
        self._key = key
        self._first: Schema = first
        self._values: dict[str, Any] | None = None
        """Constants used as discriminators. None until there are several."""
        self._parts: dict[bytes | str, Schema] | None = None
        """Different schemas. None while there is only one, or only constants."""

    @property
    def is_empty(self) -> bool:
        """True if the combination accepts anything."""
        return self._first == {} and self._parts is None

    def add(self, part: Schema) -> None:
        """Combine another schema."""
        if self._parts is None and part == self._first:
            return
        if self._parts is None and self._key == "anyOf" and _is_constant(self._first) and _is_constant(part):
            if self._values is None:
                self._values = {repr(value): value for value in _list_constants(self._first)}
            self._values.update((repr(value), value) for value in _list_constants(part))
            kinds = {str(each.get("type")) for each in (self._first, part)}
            kind: Schema = {"type": self._first["type"]} if "type" in self._first and len(kinds) == 1 else {}
            self._first = {**kind, "enum": []}
            return
        if self._parts is None:
            first = self.build()
            inner: list[Schema] = first[self._key] if first.keys() == {self._key} else [first]
            self._parts = {_make_key(each): each for each in inner}
        self._parts.setdefault(_make_key(part), part)

    def build(self) -> Schema:
        """Return the combined schema."""
        if self._parts is not None:
            if len(self._parts) > 1 or self._first.keys() == {self._key}:
                return {self._key: list(self._parts.values())}
            return next(iter(self._parts.values()))
        return self._first if self._values is None else {**self._first, "enum": list(self._values.values())}


def _make_key(schema: Schema) -> bytes | str:
    try:
        return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return repr(schema)


def _is_constant(schema: Schema) -> bool:
    return not schema.keys() - {"const", "enum", "type", "title", "default"} and not schema.keys().isdisjoint(_VALUES)


def _list_constants(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else schema["enum"]
