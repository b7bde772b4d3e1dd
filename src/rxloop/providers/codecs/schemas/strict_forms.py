"""Schemas that OpenAI and Claude enforce during generation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from rxloop.providers.codecs.schemas.dialects import MARKS, StrictRules
from rxloop.providers.codecs.schemas.normal_form import Schema, describe, mapped, target_of
from rxloop.support.json_schema import close_objects

_MOST_PARTS = 20_000
"""Maximum number of schemas after references are replaced by their targets."""

_MOST_INSIDE = 20
"""Maximum nesting depth of inlined shared schemas."""

_NOT_IN_STRICT = re.compile(r"\(\?(?:[=!]|<[=!]|P=|\()|\\[1-9]")
"""Unsupported regular expression features."""

_TYPES: dict[type[Any], str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class NotStrict(Exception):
    """Raised with the reason if a schema cannot be enforced."""


def openai_form(schema: Schema, rules: StrictRules) -> Schema:
    """Convert a schema: close all objects and make all properties required.

    Closing an object is safe if it does not mention additional properties. Making a property required is safe if its
    default is null.

    Raises:
        NotStrict: The schema cannot be converted without changing its meaning.
    """
    if schema.get("type") != "object":
        raise NotStrict("the root must be an object")
    made = _Strict(rules, schema.get("$defs", {})).part(schema, "", frozenset())
    _check_limits(made, rules)
    return made


class _Strict:
    def __init__(self, rules: StrictRules, defs: Schema) -> None:
        self._rules = rules
        self._defs = defs
        self._parts = 0

    def part(self, schema: Schema, where: str, inside: frozenset[str]) -> Schema:
        self._parts += 1
        if self._parts > _MOST_PARTS or len(inside) > _MOST_INSIDE:
            raise NotStrict("it is too large")
        given = {name: value for name, value in schema.items() if name not in MARKS and not name.startswith("x-")}
        if "examples" in schema and "$ref" not in schema:
            describe(given, {"examples": schema["examples"]})
        if given.get("default") is None:
            given.pop("default", None)
        if "oneOf" in given and "anyOf" not in given:
            given = {("anyOf" if name == "oneOf" else name): value for name, value in given.items()}
        for name in given:
            if name not in self._rules.keywords:
                raise NotStrict(f"{_place(where, name)} cannot be enforced")
        if "$ref" in given and given.keys() - {"$ref", "$defs"}:
            return self._inlined(given, where, inside)
        _check_texts(given, where, self._rules)
        if not given.keys() & {"type", "anyOf", "$ref"}:
            given["type"] = _type_of_values(given, where)
        if "array" in given.get("type", ()) and "items" not in given:
            raise NotStrict(f"{where or 'its root'} needs items")
        result = mapped(given, where, lambda part, place: self.part(part, place, inside))
        if given.get("type") != "object":
            if "object" in given.get("type", ()) and isinstance(given["type"], list):
                raise NotStrict(f"{_place(where, 'type')} must not combine objects with other types")
            return result
        closing = close_objects(given)
        if closing is None:
            raise NotStrict(f"{where or 'its root'} is an object with free keys")
        required = given.get("required", [])
        for name, part in given["properties"].items():
            # Models cannot know default values, except null.
            if name not in required and part.get("default", ...) is not None:
                raise NotStrict(f"{_place(where, f'properties.{name}')} is optional")
        return result | closing

    def _inlined(self, given: Schema, where: str, inside: frozenset[str]) -> Schema:
        """Inline a reference with sibling keywords such as a description."""
        reference: str = given["$ref"]
        beside = {name: value for name, value in given.items() if name not in ("$ref", "title")}
        target = target_of(reference, self._defs)
        if target is None or reference in inside or not beside.keys() - {"$defs"}:
            return self.part({"$ref": reference, **{k: v for k, v in beside.items() if k == "$defs"}}, where, inside)
        return self.part({**target, **beside}, where, inside | {reference})


def _check_texts(given: Schema, where: str, rules: StrictRules) -> None:
    if given.get("format", "date") not in rules.formats:
        raise NotStrict(f"{_place(where, 'format')} {given['format']!r} cannot be enforced")
    if _NOT_IN_STRICT.search(given.get("pattern", "")):
        raise NotStrict(f"{_place(where, 'pattern')} {given['pattern']!r} cannot be enforced")


def _type_of_values(given: Schema, where: str) -> str | list[str]:
    values: list[Any] = [given["const"]] if "const" in given else given.get("enum", [])
    kinds = list(dict.fromkeys(_TYPES.get(cast("type[Any]", type(value)), "") for value in values))
    if not kinds or "" in kinds:
        raise NotStrict(f"{where or 'its root'} has no type")
    return kinds[0] if len(kinds) == 1 else kinds


def _check_limits(schema: Schema, rules: StrictRules) -> None:
    properties = values = characters = 0
    for part in _all_parts(schema):
        fields: Schema = part.get("properties", {})
        listed: list[Any] = part.get("enum", [])
        length = sum(len(str(value)) for value in listed)
        if len(listed) > rules.long_enum[0] and length > rules.long_enum[1]:
            raise NotStrict(f"long enums must not exceed {rules.long_enum[1]} characters")
        properties += len(fields)
        values += len(listed)
        characters += length + len(str(part.get("const", ""))) + sum(map(len, [*fields, *part.get("$defs", {})]))
    for count, most, what in (
        (properties, rules.properties, "properties"),
        (values, rules.enum_values, "values of enums"),
        (characters, rules.characters, "characters of names and values"),
        (_depth(schema, schema.get("$defs", {}), {}), rules.depth, "nested objects"),
    ):
        if count > most:
            raise NotStrict(f"it has {count:,} {what}, and {most:,} can be enforced")


def _all_parts(schema: Schema) -> Iterator[Schema]:
    yield schema
    for part in _inside(schema):
        yield from _all_parts(part)


def _inside(schema: Schema) -> list[Schema]:
    found: list[Schema] = []
    mapped(schema, "", lambda part, place: found.append(part))
    return found


def _depth(schema: Schema, defs: Schema, known: dict[str, int]) -> int:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = 0
            known[reference] = _depth(target_of(reference, defs) or {}, defs, known)
        return known[reference]
    parts = _inside({name: value for name, value in schema.items() if name != "$defs"})
    inside = max((_depth(part, defs, known) for part in parts), default=0)
    return inside + 1 if schema.get("type") == "object" else inside


def _place(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))

_CLAUDE_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))

_WITH_PARTS = frozenset(
    ("properties", "items", "anyOf", "oneOf", "allOf", "if", "then", "else", "dependentSchemas", "contains", "not")
)
"""Keywords with nested schemas, which cannot be put into a description."""

_DEEPEST = 100

_PLAIN = (str, int, float, bool, type(None))


def claude_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a schema to the subset supported by Claude.

    All objects are closed, which only excludes unmentioned properties. Unsupported constraints such as `minimum` are
    moved to the description and must be validated later. Free-form objects, recursive schemas and missing types are not
    supported.

    Raises:
        NotStrict: The schema cannot be converted without changing its meaning.
    """
    _check_references(schema)
    return _fitted(schema, 0)


def _fitted(given: Any, depth: int) -> dict[str, Any]:
    if not isinstance(given, dict) or depth > _DEEPEST:
        raise NotStrict("it is nested too deeply")
    rest = dict(cast("dict[str, Any]", given))
    made: dict[str, Any] = {}
    if "$defs" in rest:
        made["$defs"] = _each(rest.pop("$defs"), depth)
    if "$ref" in rest:
        return {**made, "$ref": rest["$ref"]}
    for name in ("title", "description"):
        if isinstance(text := rest.pop(name, None), str):
            made[name] = text
    literal = _literal(rest)
    made |= literal or _kind(rest, depth)
    rest.pop("type", None)
    rest.pop("discriminator", None)
    if rest.get("default", ...) is None:
        del rest["default"]
    if parts := _WITH_PARTS.intersection(rest):
        raise NotStrict(f"{', '.join(sorted(parts))} cannot be enforced")
    if rest:
        constraints = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        made["description"] = "\n\n".join(filter(None, (made.get("description"), constraints)))
    return made


def _literal(rest: dict[str, Any]) -> dict[str, Any]:
    """Convert enums and constants."""
    if isinstance(values := rest.get("enum"), list) and values:
        if not all(isinstance(value, _PLAIN) for value in cast("list[Any]", values)):
            raise NotStrict("enums with objects or arrays cannot be enforced")
        return {"enum": rest.pop("enum")}
    if "const" in rest:
        if not isinstance(rest["const"], _PLAIN):
            raise NotStrict("objects and arrays as constants cannot be enforced")
        return {"const": rest.pop("const")}
    return {}


def _kind(rest: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the keywords for the type, and remove the handled keywords from `rest`."""
    for name, becomes in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(variants := rest.pop(name, None), list):
            return {becomes: [_fitted(variant, depth + 1) for variant in cast("list[Any]", variants)]}
    kind = rest.get("type")
    if isinstance(kind, list):
        base = {name: value for name, value in rest.items() if name not in ("default", "type")}
        variants = [_variant(base, each) for each in cast("list[Any]", kind)]
        rest.clear()
        return {"anyOf": [_fitted(variant, depth + 1) for variant in variants]}
    if kind not in _CLAUDE_TYPES:
        raise NotStrict("a type is missing")
    if kind == "object":
        return _object(rest, depth)
    made: dict[str, Any] = {"type": kind}
    if kind == "string" and rest.get("format") in _FORMATS:
        made["format"] = rest.pop("format")
    elif kind == "array":
        if "prefixItems" in rest:
            raise NotStrict("prefixItems cannot be enforced")
        if "items" in rest:
            made["items"] = _fitted(rest.pop("items"), depth + 1)
        if rest.get("minItems") in (0, 1):
            made["minItems"] = rest.pop("minItems")
    return made


def _variant(base: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Return a single-type schema without unrelated keywords."""
    return {"type": kind} if kind in ("null", "boolean") else {**base, "type": kind}


def _object(rest: dict[str, Any], depth: int) -> dict[str, Any]:
    if rest.pop("additionalProperties", False) is not False or "patternProperties" in rest:
        raise NotStrict("free-form objects cannot be enforced")
    made: dict[str, Any] = {"type": "object", "properties": _each(rest.pop("properties", {}), depth)}
    made["additionalProperties"] = False
    if isinstance(required := rest.pop("required", None), list):
        made["required"] = required
    return made


def _each(schemas: Any, depth: int) -> dict[str, Any]:
    if not isinstance(schemas, dict):
        raise NotStrict("properties must be an object")
    return {name: _fitted(schema, depth + 1) for name, schema in cast("dict[str, Any]", schemas).items()}


def _check_references(schema: dict[str, Any]) -> None:
    """Raise if a reference has no target or is recursive."""
    defs: dict[str, Any] = schema.get("$defs") or {}
    leads = {name: {ref.removeprefix("#/$defs/") for ref in _references(part)} for name, part in defs.items()}
    begin = {key: value for key, value in schema.items() if key != "$defs"}
    if not {ref.removeprefix("#/$defs/") for ref in _references(begin)} <= leads.keys():
        raise NotStrict("undefined reference")
    while ends := [name for name, targets in leads.items() if not targets]:
        for name in ends:
            del leads[name]
        for targets in leads.values():
            targets.difference_update(ends)
    if leads:
        raise NotStrict("it contains itself")


def _references(part: Any) -> set[str]:
    found: set[str] = set()
    open_parts = [part]
    while open_parts:
        each: Any = open_parts.pop()
        if isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            if isinstance(ref := fields.get("$ref"), str):
                found.add(ref)
            open_parts += fields.values()
        elif isinstance(each, list):
            open_parts += cast("list[Any]", each)
    return found


def demands(schema: dict[str, Any]) -> tuple[int, int]:
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
