"""Schemas that OpenAI and Claude enforce during generation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from rxloop.providers.codecs.schemas.dialects import IGNORED, StrictRules
from rxloop.providers.codecs.schemas.normal_form import Schema, add_to_description, map_subschemas, resolve_reference
from rxloop.support.json_schema import close_objects

_MAX_PARTS = 20_000
"""Maximum number of schemas after references are replaced by their targets."""

_MAX_INLINE_DEPTH = 20
"""Maximum nesting depth of inlined shared schemas."""

_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!]|P=|\()|\\[1-9]")
"""Unsupported regular expression features."""

_TYPES: dict[type[Any], str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class NotStrict(Exception):
    """Raised with the reason if a schema cannot be enforced."""


def to_openai_form(schema: Schema, rules: StrictRules) -> Schema:
    """Convert a schema: close all objects and make all properties required.

    Closing an object is safe if it does not mention additional properties. Making a property required is safe if its
    default is null.

    Raises:
        NotStrict: The schema cannot be converted without changing its meaning.
    """
    if schema.get("type") != "object":
        raise NotStrict("the root must be an object")
    converted = _Strict(rules, schema.get("$defs", {})).convert(schema, "", frozenset())
    _check_limits(converted, rules)
    return converted


class _Strict:
    def __init__(self, rules: StrictRules, defs: Schema) -> None:
        self._rules = rules
        self._defs = defs
        self._parts = 0

    def convert(self, schema: Schema, location: str, inlined: frozenset[str]) -> Schema:
        self._parts += 1
        if self._parts > _MAX_PARTS or len(inlined) > _MAX_INLINE_DEPTH:
            raise NotStrict("it is too large")
        fields = {name: value for name, value in schema.items() if name not in IGNORED and not name.startswith("x-")}
        if "examples" in schema and "$ref" not in schema:
            add_to_description(fields, {"examples": schema["examples"]})
        if fields.get("default") is None:
            fields.pop("default", None)
        if "oneOf" in fields and "anyOf" not in fields:
            fields = {("anyOf" if name == "oneOf" else name): value for name, value in fields.items()}
        for name in fields:
            if name not in self._rules.keywords:
                raise NotStrict(f"{_join_path(location, name)} cannot be enforced")
        if "$ref" in fields and fields.keys() - {"$ref", "$defs"}:
            return self._inline_reference(fields, location, inlined)
        _check_strings(fields, location, self._rules)
        if not fields.keys() & {"type", "anyOf", "$ref"}:
            fields["type"] = _infer_type(fields, location)
        if "array" in fields.get("type", ()) and "items" not in fields:
            raise NotStrict(f"{location or 'its root'} needs items")
        result = map_subschemas(fields, location, lambda part, path: self.convert(part, path, inlined))
        if fields.get("type") != "object":
            if "object" in fields.get("type", ()) and isinstance(fields["type"], list):
                raise NotStrict(f"{_join_path(location, 'type')} must not combine objects with other types")
            return result
        closing = close_objects(fields)
        if closing is None:
            raise NotStrict(f"{location or 'its root'} is an object with free keys")
        required = fields.get("required", [])
        for name, part in fields["properties"].items():
            # Models cannot know default values, except null.
            if name not in required and part.get("default", ...) is not None:
                raise NotStrict(f"{_join_path(location, f'properties.{name}')} is optional")
        return result | closing

    def _inline_reference(self, schema: Schema, location: str, inlined: frozenset[str]) -> Schema:
        """Inline a reference with sibling keywords such as a description."""
        reference: str = schema["$ref"]
        other = {name: value for name, value in schema.items() if name not in ("$ref", "title")}
        target = resolve_reference(reference, self._defs)
        if target is None or reference in inlined or not other.keys() - {"$defs"}:
            return self.convert(
                {"$ref": reference, **{k: v for k, v in other.items() if k == "$defs"}}, location, inlined
            )
        return self.convert({**target, **other}, location, inlined | {reference})


def _check_strings(schema: Schema, location: str, rules: StrictRules) -> None:
    if schema.get("format", "date") not in rules.formats:
        raise NotStrict(f"{_join_path(location, 'format')} {schema['format']!r} cannot be enforced")
    if _UNSUPPORTED_PATTERN.search(schema.get("pattern", "")):
        raise NotStrict(f"{_join_path(location, 'pattern')} {schema['pattern']!r} cannot be enforced")


def _infer_type(schema: Schema, location: str) -> str | list[str]:
    values: list[Any] = [schema["const"]] if "const" in schema else schema.get("enum", [])
    kinds = list(dict.fromkeys(_TYPES.get(cast("type[Any]", type(value)), "") for value in values))
    if not kinds or "" in kinds:
        raise NotStrict(f"{location or 'its root'} has no type")
    return kinds[0] if len(kinds) == 1 else kinds


def _check_limits(schema: Schema, rules: StrictRules) -> None:
    properties = values = characters = 0
    for part in _iter_schemas(schema):
        fields: Schema = part.get("properties", {})
        listed: list[Any] = part.get("enum", [])
        length = sum(len(str(value)) for value in listed)
        if len(listed) > rules.long_enum[0] and length > rules.long_enum[1]:
            raise NotStrict(f"long enums must not exceed {rules.long_enum[1]} characters")
        properties += len(fields)
        values += len(listed)
        characters += length + len(str(part.get("const", ""))) + sum(map(len, [*fields, *part.get("$defs", {})]))
    for count, limit, what in (
        (properties, rules.properties, "properties"),
        (values, rules.enum_values, "values of enums"),
        (characters, rules.characters, "characters of names and values"),
        (_measure_depth(schema, schema.get("$defs", {}), {}), rules.depth, "nested objects"),
    ):
        if count > limit:
            raise NotStrict(f"it has {count:,} {what}, and {limit:,} can be enforced")


def _iter_schemas(schema: Schema) -> Iterator[Schema]:
    yield schema
    for part in _list_subschemas(schema):
        yield from _iter_schemas(part)


def _list_subschemas(schema: Schema) -> list[Schema]:
    subschemas: list[Schema] = []
    map_subschemas(schema, "", lambda part, path: subschemas.append(part))
    return subschemas


def _measure_depth(schema: Schema, defs: Schema, cache: dict[str, int]) -> int:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in cache:
            cache[reference] = 0
            cache[reference] = _measure_depth(resolve_reference(reference, defs) or {}, defs, cache)
        return cache[reference]
    parts = _list_subschemas({name: value for name, value in schema.items() if name != "$defs"})
    inside = max((_measure_depth(part, defs, cache) for part in parts), default=0)
    return inside + 1 if schema.get("type") == "object" else inside


def _join_path(location: str, name: str) -> str:
    return f"{location}.{name}" if location else name


_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))

_CLAUDE_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))

_SCHEMA_KEYWORDS = frozenset(
    ("properties", "items", "anyOf", "oneOf", "allOf", "if", "then", "else", "dependentSchemas", "contains", "not")
)
"""Keywords with nested schemas, which cannot be put into a description."""

_MAX_DEPTH = 100

_SCALARS = (str, int, float, bool, type(None))


def to_claude_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a schema to the subset supported by Claude.

    All objects are closed, which only excludes unmentioned properties. Unsupported constraints such as `minimum` are
    moved to the description and must be validated later. Free-form objects, recursive schemas and missing types are not
    supported.

    Raises:
        NotStrict: The schema cannot be converted without changing its meaning.
    """
    _check_references(schema)
    return _convert(schema, 0)


def _convert(schema: Any, depth: int) -> dict[str, Any]:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        raise NotStrict("it is nested too deeply")
    remaining = dict(cast("dict[str, Any]", schema))
    result: dict[str, Any] = {}
    if "$defs" in remaining:
        result["$defs"] = _convert_each(remaining.pop("$defs"), depth)
    if "$ref" in remaining:
        return {**result, "$ref": remaining["$ref"]}
    for name in ("title", "description"):
        if isinstance(text := remaining.pop(name, None), str):
            result[name] = text
    literal = _convert_literal(remaining)
    result |= literal or _convert_type(remaining, depth)
    remaining.pop("type", None)
    remaining.pop("discriminator", None)
    if remaining.get("default", ...) is None:
        del remaining["default"]
    if parts := _SCHEMA_KEYWORDS.intersection(remaining):
        raise NotStrict(f"{', '.join(sorted(parts))} cannot be enforced")
    if remaining:
        constraints = "{" + ", ".join(f"{name}: {value}" for name, value in remaining.items()) + "}"
        result["description"] = "\n\n".join(filter(None, (result.get("description"), constraints)))
    return result


def _convert_literal(remaining: dict[str, Any]) -> dict[str, Any]:
    """Convert enums and constants."""
    if isinstance(values := remaining.get("enum"), list) and values:
        if not all(isinstance(value, _SCALARS) for value in cast("list[Any]", values)):
            raise NotStrict("enums with objects or arrays cannot be enforced")
        return {"enum": remaining.pop("enum")}
    if "const" in remaining:
        if not isinstance(remaining["const"], _SCALARS):
            raise NotStrict("objects and arrays as constants cannot be enforced")
        return {"const": remaining.pop("const")}
    return {}


def _convert_type(remaining: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the keywords for the type, and remove the handled keywords from `rest`."""
    for name, becomes in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(variants := remaining.pop(name, None), list):
            return {becomes: [_convert(variant, depth + 1) for variant in cast("list[Any]", variants)]}
    kind = remaining.get("type")
    if isinstance(kind, list):
        base = {name: value for name, value in remaining.items() if name not in ("default", "type")}
        variants = [_make_variant(base, each) for each in cast("list[Any]", kind)]
        remaining.clear()
        return {"anyOf": [_convert(variant, depth + 1) for variant in variants]}
    if kind not in _CLAUDE_TYPES:
        raise NotStrict("a type is missing")
    if kind == "object":
        return _convert_object(remaining, depth)
    result: dict[str, Any] = {"type": kind}
    if kind == "string" and remaining.get("format") in _FORMATS:
        result["format"] = remaining.pop("format")
    elif kind == "array":
        if "prefixItems" in remaining:
            raise NotStrict("prefixItems cannot be enforced")
        if "items" in remaining:
            result["items"] = _convert(remaining.pop("items"), depth + 1)
        if remaining.get("minItems") in (0, 1):
            result["minItems"] = remaining.pop("minItems")
    return result


def _make_variant(base: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Return a single-type schema without unrelated keywords."""
    return {"type": kind} if kind in ("null", "boolean") else {**base, "type": kind}


def _convert_object(remaining: dict[str, Any], depth: int) -> dict[str, Any]:
    if remaining.pop("additionalProperties", False) is not False or "patternProperties" in remaining:
        raise NotStrict("free-form objects cannot be enforced")
    result: dict[str, Any] = {"type": "object", "properties": _convert_each(remaining.pop("properties", {}), depth)}
    result["additionalProperties"] = False
    if isinstance(required := remaining.pop("required", None), list):
        result["required"] = required
    return result


def _convert_each(schemas: Any, depth: int) -> dict[str, Any]:
    if not isinstance(schemas, dict):
        raise NotStrict("properties must be an object")
    return {name: _convert(schema, depth + 1) for name, schema in cast("dict[str, Any]", schemas).items()}


def _check_references(schema: dict[str, Any]) -> None:
    """Raise if a reference has no target or is recursive."""
    defs: dict[str, Any] = schema.get("$defs") or {}
    leads = {name: {ref.removeprefix("#/$defs/") for ref in _find_references(part)} for name, part in defs.items()}
    begin = {key: value for key, value in schema.items() if key != "$defs"}
    if not {ref.removeprefix("#/$defs/") for ref in _find_references(begin)} <= leads.keys():
        raise NotStrict("undefined reference")
    sources: dict[str, list[str]] = {}
    for name, targets in leads.items():
        for target in targets:
            sources.setdefault(target, []).append(name)
    ends = [name for name, targets in leads.items() if not targets]
    for end in ends:
        for source in sources.get(end, ()):
            leads[source].discard(end)
            if not leads[source]:
                ends.append(source)
    if len(ends) < len(leads):
        raise NotStrict("a definition in $defs refers to itself")


def _find_references(part: Any) -> set[str]:
    references: set[str] = set()
    open_parts = [part]
    while open_parts:
        each: Any = open_parts.pop()
        if isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            if isinstance(ref := fields.get("$ref"), str):
                references.add(ref)
            open_parts += fields.values()
        elif isinstance(each, list):
            open_parts += cast("list[Any]", each)
    return references


def count_demands(schema: dict[str, Any]) -> tuple[int, int]:
    """Count optional properties and unions, which are limited."""
    optional = unions = 0
    open_parts: list[Any] = [schema]
    while open_parts:
        each: Any = open_parts.pop()
        if isinstance(each, list):
            open_parts += cast("list[Any]", each)
        elif isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            if isinstance(named := fields.get("properties"), dict):
                optional += len(cast("dict[str, Any]", named).keys() - set(fields.get("required") or ()))
            unions += "anyOf" in fields
            open_parts += fields.values()
    return optional, unions
