"""JSON Schemas as Claude can be held to them: in answers, and in the arguments of strict tools."""

from __future__ import annotations

from typing import Any, cast

_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))
_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_DEEPEST = 100
_PLAIN = (str, int, float, bool, type(None))


class _NoForm(Exception):
    """The schema has no form that means the same."""


def fitted(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema in the part of the language that Claude can be held to; None where that would change its meaning.

    Every object is closed, which leaves out nothing but properties that the schema does not mention. Constraints that
    are not known there, such as `minimum`, go into the description: whoever reads the answer checks them. An object
    with free keys, a schema that contains itself, or one without a type has no such form.
    """
    try:
        _check_references(schema)
        return _fitted(schema, 0)
    except _NoForm:
        return None


def _fitted(given: Any, depth: int) -> dict[str, Any]:
    if not isinstance(given, dict) or depth > _DEEPEST:
        raise _NoForm
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
    if rest:
        constraints = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        made["description"] = "\n\n".join(filter(None, (made.get("description"), constraints)))
    return made


def _literal(rest: dict[str, Any]) -> dict[str, Any]:
    """What allows some values alone."""
    if isinstance(values := rest.get("enum"), list) and values:
        if not all(isinstance(value, _PLAIN) for value in cast("list[Any]", values)):
            raise _NoForm
        return {"enum": rest.pop("enum")}
    if "const" in rest:
        if not isinstance(rest["const"], _PLAIN):
            raise _NoForm
        return {"const": rest.pop("const")}
    return {}


def _kind(rest: dict[str, Any], depth: int) -> dict[str, Any]:
    """What says which kinds of values there are; takes out of `rest` what it understands."""
    for name, becomes in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(variants := rest.pop(name, None), list):
            return {becomes: [_fitted(variant, depth + 1) for variant in cast("list[Any]", variants)]}
    kind = rest.get("type")
    if isinstance(kind, list):
        base = {name: value for name, value in rest.items() if name not in ("default", "type")}
        variants = [_variant(base, each) for each in cast("list[Any]", kind)]
        rest.clear()
        return {"anyOf": [_fitted(variant, depth + 1) for variant in variants]}
    if kind not in _TYPES:
        raise _NoForm
    if kind == "object":
        return _object(rest, depth)
    made: dict[str, Any] = {"type": kind}
    if kind == "string" and rest.get("format") in _FORMATS:
        made["format"] = rest.pop("format")
    elif kind == "array":
        if "prefixItems" in rest:
            raise _NoForm
        if "items" in rest:
            made["items"] = _fitted(rest.pop("items"), depth + 1)
        if rest.get("minItems") in (0, 1):
            made["minItems"] = rest.pop("minItems")
    return made


def _variant(base: dict[str, Any], kind: Any) -> dict[str, Any]:
    """One kind of several, without what is said of the others."""
    return {"type": kind} if kind in ("null", "boolean") else {**base, "type": kind}


def _object(rest: dict[str, Any], depth: int) -> dict[str, Any]:
    if rest.pop("additionalProperties", False) is not False or "patternProperties" in rest:
        raise _NoForm
    made: dict[str, Any] = {"type": "object", "properties": _each(rest.pop("properties", {}), depth)}
    made["additionalProperties"] = False
    if isinstance(required := rest.pop("required", None), list):
        made["required"] = required
    return made


def _each(schemas: Any, depth: int) -> dict[str, Any]:
    if not isinstance(schemas, dict):
        raise _NoForm
    return {name: _fitted(schema, depth + 1) for name, schema in cast("dict[str, Any]", schemas).items()}


def _check_references(schema: dict[str, Any]) -> None:
    """Raise if a reference leads out of the schema, or back to where it came from."""
    defs: dict[str, Any] = schema.get("$defs") or {}
    leads = {name: {ref.removeprefix("#/$defs/") for ref in _references(part)} for name, part in defs.items()}
    begin = {key: value for key, value in schema.items() if key != "$defs"}
    if not {ref.removeprefix("#/$defs/") for ref in _references(begin)} <= leads.keys():
        raise _NoForm
    while ends := [name for name, targets in leads.items() if not targets]:
        for name in ends:
            del leads[name]
        for targets in leads.values():
            targets.difference_update(ends)
    if leads:
        raise _NoForm


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
    """How many optional properties and how many unions a fitted schema has: the vendor takes only so many."""
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
