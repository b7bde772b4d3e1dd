"""Conversion of JSON Schemas to vendor-specific dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from rxloop.providers.codecs.schemas.dialects import IGNORED, Dialect, short_hash
from rxloop.providers.codecs.schemas.normal_form import (
    Notes,
    Schema,
    add_to_description,
    map_subschemas,
    normalise_schema,
)
from rxloop.providers.codecs.schemas.object_root import merge_object, to_object_root, wrap_root
from rxloop.providers.codecs.schemas.strict_forms import NotStrict, to_claude_form, to_openai_form

_MERGED = ("allOf", "if", "then", "else", "dependentSchemas")
"""Keywords that can add properties."""

_TYPES: dict[type[Any], str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

_MAX_MERGES = 200
"""Maximum number of schemas whose parts are merged."""

_PROPERTIES_PER_MERGE = 20
"""Number of properties that count as another merge, because each merge copies them."""

_NO_NAMES: Mapping[str, str] = {}


class AdaptedSchema(NamedTuple):
    """Converted schema."""

    schema: Schema
    strict: bool
    """True if the vendor can enforce the schema."""
    notes: tuple[str, ...] = ()
    """Descriptions of the changes."""
    names: Mapping[str, str] = _NO_NAMES
    """Original names of renamed parameters, by the names in the schema."""


def adapt_schema(
    schema: Any, dialect: Dialect, *, strict: bool = False, use: Literal["tool", "answer"] = "tool"
) -> AdaptedSchema:
    """Adapt a schema to a vendor. Schemas that the vendor accepts are not changed.

    Args:
        schema: A JSON Schema of any draft, which may be malformed.
        dialect: JSON Schema dialect of the vendor.
        strict: True if the vendor should enforce the schema, if it can.
        use: Whether the schema describes the parameters of a tool or an answer.
    """
    notes = Notes()
    adapted = normalise_schema(schema, notes)
    names: Mapping[str, str] = _NO_NAMES
    if use == "tool":
        adapted = to_object_root(adapted, dialect, notes) or wrap_root(adapted, notes)
        adapted, names = _rename_properties(adapted, dialect, notes)
    elif not dialect.answer_names:
        adapted = to_object_root(adapted, dialect, notes) or adapted
    if strict and dialect.strict is not None:
        try:
            checked = _list_names(adapted) if use == "answer" and dialect.answer_names else ()
            if (rejected := next(filter(partial(_rejects, dialect), checked), None)) is not None:
                raise NotStrict(f"the property name {rejected!r} contains unsupported characters")
            rules = dialect.strict
            form = to_claude_form(adapted) if rules.form == "claude" else to_openai_form(adapted, rules)
            if use == "tool" and form.get("type") != "object":
                raise NotStrict("the root must be an object")
            return AdaptedSchema(form, True, tuple(notes.all), names)
        except NotStrict as error:
            notes.add("", f"it is sent without strict, since {error}")
    adapted = _Converter(dialect, adapted.get("$defs", {}), notes).convert(adapted, "")
    return AdaptedSchema(adapted, False, tuple(notes.all), names)


class _Converter:
    """Converts normalised schemas to supported keywords."""

    def __init__(self, dialect: Dialect, defs: Schema, notes: Notes) -> None:
        self._dialect = dialect
        self._defs = defs
        self._notes = notes
        self._budget = _MAX_MERGES

    def convert(self, original: Schema, location: str, seen: frozenset[str] = frozenset()) -> Schema:
        dialect, keywords = self._dialect, self._dialect.keywords
        schema = original
        if keywords is not None and any(name in schema for name in _MERGED):
            schema, seen = self._merge_conditions(schema, location, seen)
        copy = map_subschemas(schema, location, lambda part, path: self.convert(part, path, seen))
        kinds = copy.get("type", ())
        if dialect.needs_properties and "object" in kinds and not copy.keys() & {"properties", "additionalProperties"}:
            self._notes.add(location, "properties is added")
            copy["properties"] = {}
        if dialect.needs_items and "array" in kinds and "items" not in copy:
            self._add_items(copy, location)
        if dialect.requires_plain_enums:
            self._split_enums(copy, location)
        if keywords is not None:
            self._drop_keywords(copy, location)
            self._add_required(copy, location)
        if dialect.requires_lone_ref and copy.keys() - {"$ref", "$defs"} and "$ref" in copy:
            copy = {"anyOf": [{"$ref": copy.pop("$ref")}], **copy}
        return copy

    def _merge_conditions(self, schema: Schema, location: str, seen: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Merge conditions. Also return references that must not be merged again."""
        parts = cast("list[Schema]", schema.get("allOf", []))
        others = {name: value for name, value in schema.items() if name not in _MERGED}
        if len(parts) == 1 and not others.keys() - {"title", "description", "default"} and "if" not in schema:
            self._notes.add(location, "allOf is sent as anyOf, since it has one part")
            return {"anyOf": parts, **others}, seen
        references = {part["$ref"] for part in parts if "$ref" in part}
        self._budget -= 1
        merged = merge_object(schema, _MERGED, self._defs) if seen.isdisjoint(references) and self._budget > 0 else None
        if merged is not None:
            self._budget -= len(merged["properties"]) // _PROPERTIES_PER_MERGE
            self._notes.add(location, "the properties of all its parts are sent as one object")
            return merged, seen | references
        self._notes.add(location, "only the plain conditions of allOf are sent")
        for each in parts:
            others = {**{name: value for name, value in each.items() if name != "$ref"}, **others}
        return {name: value for name, value in others.items() if name not in _MERGED}, seen

    def _add_items(self, schema: Schema, location: str) -> None:
        parts = cast("list[Schema]", schema.get("prefixItems", []))
        different = list({repr(part): part for part in parts}.values())
        if not different or {} in different:
            items: Schema = {}
        else:
            items = different[0] if len(different) == 1 else {"anyOf": different}
        self._notes.add(location, "items is added, since an array needs them")
        schema["items"] = items

    def _split_enums(self, schema: Schema, location: str) -> None:
        """Replace constants and mixed enums with single-type enums."""
        if "const" in schema:
            schema["enum"] = [schema.pop("const")]
            self._notes.add(location, "const is sent as an enum")
        values = cast("list[Any]", schema.get("enum", []))
        by_kind: dict[str, list[Any]] = {}
        for value in values:
            by_kind.setdefault(
                _TYPES.get(cast("type[Any]", type(value)), "object" if isinstance(value, dict) else "array"), []
            ).append(value)
        if (
            not by_kind
            or by_kind.keys() <= {"string"}
            or (len(by_kind) == 1 and by_kind.keys() <= {"integer", "number"})
        ):
            if by_kind and "type" not in schema:
                schema["type"] = next(iter(by_kind))
            return
        self._notes.add(location, "its enum is sent as one enum for each type")
        del schema["enum"]
        schema.pop("type", None)
        options: list[Schema] = []
        for kind, each in by_kind.items():
            option: Schema = {"type": kind, "items": {}} if kind == "array" else {"type": kind}
            if kind in ("string", "integer", "number"):
                option["enum"] = each
            elif kind != "null" and not (kind == "boolean" and len(each) > 1):
                add_to_description(option, {"enum": each})
            options.append(option)
        if len(options) == 1:
            description = [text for text in (schema.get("description"), options[0].get("description")) if text]
            schema.update(options[0])
            if description:
                schema["description"] = "\n\n".join(description)
        elif "anyOf" in schema or "oneOf" in schema:
            add_to_description(schema, {"enum": values})
        else:
            schema["anyOf"] = options

    def _drop_keywords(self, schema: Schema, location: str) -> None:
        accepted = self._dialect.keywords or frozenset()
        unknown = [name for name in schema if name not in accepted]
        if not unknown:
            return
        dropped = {name: schema.pop(name) for name in unknown}
        if "patternProperties" in dropped and schema.get("additionalProperties") is False:
            schema["additionalProperties"] = True
        reported = {name: value for name, value in dropped.items() if name not in IGNORED and not name.startswith("x-")}
        if reported:
            add_to_description(schema, reported)
        change = "is in the description" if reported else "is left out"
        self._notes.add(location, f"{', '.join(unknown)} {change}")

    def _add_required(self, schema: Schema, location: str) -> None:
        fields: Schema = schema.get("properties", {})
        missing = [name for name in schema.get("required", ()) if name not in fields]
        if not missing or schema.get("type") != "object" or "anyOf" in schema or "oneOf" in schema:
            return
        self._notes.add(location, f"properties has {', '.join(missing)} as well, since they are required")
        schema["properties"] = fields | {name: {} for name in missing}


def _rejects(dialect: Dialect, name: str) -> bool:
    return dialect.property_name.fullmatch(name) is None


def _list_names(schema: Schema) -> dict[str, None]:
    """Return all property names in order."""
    names: dict[str, None] = {}

    def visit(part: Schema, location: str) -> None:
        names.update(dict.fromkeys((*part.get("properties", ()), *part.get("required", ()))))
        map_subschemas(part, location, visit)

    visit(schema, "")
    return names


def _rename_properties(schema: Schema, dialect: Dialect, notes: Notes) -> tuple[Schema, Mapping[str, str]]:
    """Rename properties with unsupported names."""
    names_in_schema = _list_names(schema)
    new: dict[str, str] = {}
    used = set(names_in_schema)
    for name in names_in_schema:
        if not _rejects(dialect, name):
            continue
        made = re.sub("[^0-9A-Za-z_]", "_", name)[:55]
        if _rejects(dialect, made):
            made = f"_{made}"
        if made in used:
            made = f"{made}_{short_hash(name)}"
        used.add(made)
        new[name] = made
        notes.add("", f"the parameter {name!r} is sent as {made!r}")
    if not new:
        return schema, _NO_NAMES

    def visit(part: Schema, location: str) -> Schema:
        made = map_subschemas(part, location, visit)
        for key in ("properties", "dependentRequired", "dependentSchemas"):
            if key in made:
                made[key] = {new.get(name, name): value for name, value in made[key].items()}
        for key in ("required", "propertyOrdering"):
            if isinstance(made.get(key), list):
                made[key] = [new.get(name, name) for name in made[key]]
        if "dependentRequired" in made:
            made["dependentRequired"] = {
                name: [new.get(each, each) for each in names] for name, names in made["dependentRequired"].items()
            }
        return made

    return visit(schema, ""), {made: name for name, made in new.items()}


def adapt_answer_schema(schema: Any, dialect: Dialect, *, strict: bool = False) -> tuple[AdaptedSchema, str | None]:
    """Convert a response schema, and also describe the changes."""
    adapted = adapt_schema(schema, dialect, strict=strict, use="answer")
    return adapted, f"the schema of the answer ({'; '.join(adapted.notes)})" if adapted.notes else None


def make_response_format(
    schema: dict[str, Any], dialect: Dialect, can_be_strict: bool
) -> tuple[dict[str, Any], str | None]:
    """Return the `response_format` for a schema, and a description of the changes.

    Args:
        schema: A schema with an object at its root.
        dialect: JSON Schema dialect of the vendor.
        can_be_strict: True if the endpoint accepts `strict`.
    """
    name = re.sub("[^0-9A-Za-z_-]+", "_", str(schema.get("title", ""))).strip("_")[:64] or "answer"
    adapted, changes = adapt_answer_schema(schema, dialect, strict=can_be_strict)
    fields: dict[str, Any] = {"name": name, "schema": adapted.schema}
    if can_be_strict:
        fields["strict"] = adapted.strict
    return {"type": "json_schema", "json_schema": fields}, changes
