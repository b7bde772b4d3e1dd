"""Conversion of JSON Schemas to vendor-specific dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from rxloop.providers.codecs.schemas.dialects import MARKS, Dialect, short_hash
from rxloop.providers.codecs.schemas.normal_form import Notes, Schema, describe, mapped, normalised
from rxloop.providers.codecs.schemas.object_root import merged_object, object_root, wrapped_root
from rxloop.providers.codecs.schemas.strict_forms import NotStrict, claude_form, openai_form

_MERGED = ("allOf", "if", "then", "else", "dependentSchemas")
"""Keywords that can add properties."""

_KINDS: dict[type[Any], str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

_MOST_PARTS = 200
"""Maximum number of schemas whose parts are merged."""

_NO_NAMES: Mapping[str, str] = {}


class Adapted(NamedTuple):
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
) -> Adapted:
    """Adapt a schema to a vendor. Schemas that the vendor accepts are not changed.

    Args:
        schema: A JSON Schema of any draft, which may be malformed.
        dialect: JSON Schema dialect of the vendor.
        strict: True if the vendor should enforce the schema, if it can.
        use: Whether the schema describes the parameters of a tool or an answer.
    """
    notes = Notes()
    made = normalised(schema, notes)
    names: Mapping[str, str] = _NO_NAMES
    if use == "tool":
        made = object_root(made, dialect, notes) or wrapped_root(made, notes)
        made, names = _renamed(made, dialect, notes)
    elif not dialect.answer_names:
        made = object_root(made, dialect, notes) or made
    if strict and dialect.strict is not None:
        try:
            if use == "answer" and dialect.answer_names and any(map(partial(_is_misnamed, dialect), _names_in(made))):
                raise NotStrict("a property name contains unsupported characters")
            rules = dialect.strict
            form = claude_form(made) if rules.form == "claude" else openai_form(made, rules)
            if use == "tool" and form.get("type") != "object":
                raise NotStrict("the root must be an object")
            return Adapted(form, True, tuple(notes.all), names)
        except NotStrict as error:
            notes.add("", f"it is sent without strict, since {error}")
    made = _Fitting(dialect, made.get("$defs", {}), notes).part(made, "")
    return Adapted(made, False, tuple(notes.all), names)


class _Fitting:
    """Converts normalised schemas to supported keywords."""

    def __init__(self, dialect: Dialect, defs: Schema, notes: Notes) -> None:
        self._dialect = dialect
        self._defs = defs
        self._notes = notes
        self._room = _MOST_PARTS

    def part(self, given: Schema, where: str, inside: frozenset[str] = frozenset()) -> Schema:
        dialect, keywords = self._dialect, self._dialect.keywords
        schema = given
        if keywords is not None and any(name in schema for name in _MERGED):
            schema, inside = self._merged(schema, where, inside)
        made = mapped(schema, where, lambda part, place: self.part(part, place, inside))
        kinds = made.get("type", ())
        if dialect.needs_properties and "object" in kinds and not made.keys() & {"properties", "additionalProperties"}:
            self._notes.add(where, "properties is added")
            made["properties"] = {}
        if dialect.needs_items and "array" in kinds and "items" not in made:
            self._add_items(made, where)
        if dialect.plain_enums:
            self._plain_values(made, where)
        if keywords is not None:
            self._leave_out(made, where)
            self._add_required(made, where)
        if dialect.lone_ref and made.keys() - {"$ref", "$defs"} and "$ref" in made:
            made = {"anyOf": [{"$ref": made.pop("$ref")}], **made}
        return made

    def _merged(self, schema: Schema, where: str, inside: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Merge conditions. Also return references that must not be merged again."""
        parts = cast("list[Schema]", schema.get("allOf", []))
        rest = {name: value for name, value in schema.items() if name not in _MERGED}
        if len(parts) == 1 and not rest.keys() - {"title", "description", "default"} and "if" not in schema:
            self._notes.add(where, "allOf is sent as anyOf, since it has one part")
            return {"anyOf": parts, **rest}, inside
        references = {part["$ref"] for part in parts if "$ref" in part}
        self._room -= 1
        found = merged_object(schema, _MERGED, self._defs) if inside.isdisjoint(references) and self._room > 0 else None
        if found is not None:
            self._notes.add(where, "the properties of all its parts are sent as one object")
            return found, inside | references
        self._notes.add(where, "only the plain conditions of allOf are sent")
        for each in parts:
            rest = {**{name: value for name, value in each.items() if name != "$ref"}, **rest}
        return {name: value for name, value in rest.items() if name not in _MERGED}, inside

    def _add_items(self, made: Schema, where: str) -> None:
        parts = cast("list[Schema]", made.get("prefixItems", []))
        different = [part for place, part in enumerate(parts) if part not in parts[:place]]
        if not different or {} in different:
            items: Schema = {}
        else:
            items = different[0] if len(different) == 1 else {"anyOf": different}
        self._notes.add(where, "items is added, since an array needs them")
        made["items"] = items

    def _plain_values(self, made: Schema, where: str) -> None:
        """Replace constants and mixed enums with single-type enums."""
        if "const" in made:
            made["enum"] = [made.pop("const")]
            self._notes.add(where, "const is sent as an enum")
        values = cast("list[Any]", made.get("enum", []))
        by_kind: dict[str, list[Any]] = {}
        for value in values:
            by_kind.setdefault(
                _KINDS.get(cast("type[Any]", type(value)), "object" if isinstance(value, dict) else "array"), []
            ).append(value)
        if (
            not by_kind
            or by_kind.keys() <= {"string"}
            or (len(by_kind) == 1 and by_kind.keys() <= {"integer", "number"})
        ):
            if by_kind and "type" not in made:
                made["type"] = next(iter(by_kind))
            return
        self._notes.add(where, "its enum is sent as one enum for each type")
        del made["enum"]
        made.pop("type", None)
        options: list[Schema] = []
        for kind, each in by_kind.items():
            option: Schema = {"type": kind, "items": {}} if kind == "array" else {"type": kind}
            if kind in ("string", "integer", "number"):
                option["enum"] = each
            elif kind != "null" and not (kind == "boolean" and len(each) > 1):
                describe(option, {"enum": each})
            options.append(option)
        if len(options) == 1:
            description = [text for text in (made.get("description"), options[0].get("description")) if text]
            made.update(options[0])
            if description:
                made["description"] = "\n\n".join(description)
        elif "anyOf" in made or "oneOf" in made:
            describe(made, {"enum": values})
        else:
            made["anyOf"] = options

    def _leave_out(self, made: Schema, where: str) -> None:
        accepted = self._dialect.keywords or frozenset()
        unknown = [name for name in made if name not in accepted]
        if not unknown:
            return
        rest = {name: made.pop(name) for name in unknown}
        if "patternProperties" in rest and made.get("additionalProperties") is False:
            made["additionalProperties"] = True
        told = {name: value for name, value in rest.items() if name not in MARKS and not name.startswith("x-")}
        if told:
            describe(made, told)
        words = "is in the description" if told else "is left out"
        self._notes.add(where, f"{', '.join(unknown)} {words}")

    def _add_required(self, made: Schema, where: str) -> None:
        fields: Schema = made.get("properties", {})
        missing = [name for name in made.get("required", ()) if name not in fields]
        if not missing or made.get("type") != "object" or "anyOf" in made or "oneOf" in made:
            return
        self._notes.add(where, f"properties has {', '.join(missing)} as well, since they are required")
        made["properties"] = fields | {name: {} for name in missing}


def _is_misnamed(dialect: Dialect, name: str) -> bool:
    return dialect.property_name.fullmatch(name) is None


def _names_in(schema: Schema) -> dict[str, None]:
    """Return all property names in order."""
    names: dict[str, None] = {}

    def visit(part: Schema, where: str) -> None:
        names.update(dict.fromkeys((*part.get("properties", ()), *part.get("required", ()))))
        mapped(part, where, visit)

    visit(schema, "")
    return names


def _renamed(schema: Schema, dialect: Dialect, notes: Notes) -> tuple[Schema, Mapping[str, str]]:
    """Rename properties with unsupported names."""
    known = _names_in(schema)
    new: dict[str, str] = {}
    used = set(known)
    for name in known:
        if not _is_misnamed(dialect, name):
            continue
        made = re.sub("[^0-9A-Za-z_]", "_", name)[:55]
        if _is_misnamed(dialect, made):
            made = f"_{made}"
        if made in used:
            made = f"{made}_{short_hash(name)}"
        used.add(made)
        new[name] = made
        notes.add("", f"the parameter {name!r} is sent as {made!r}")
    if not new:
        return schema, _NO_NAMES

    def visit(part: Schema, where: str) -> Schema:
        made = mapped(part, where, visit)
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


def adapt_answer(schema: Any, dialect: Dialect, *, strict: bool = False) -> tuple[Adapted, str | None]:
    """Convert a response schema, and also describe the changes."""
    adapted = adapt_schema(schema, dialect, strict=strict, use="answer")
    return adapted, f"the schema of the answer ({'; '.join(adapted.notes)})" if adapted.notes else None


def response_format(schema: dict[str, Any], dialect: Dialect, can_be_strict: bool) -> tuple[dict[str, Any], str | None]:
    """Return the `response_format` for a schema, and a description of the changes.

    Args:
        schema: A schema with an object at its root.
        dialect: JSON Schema dialect of the vendor.
        can_be_strict: True if the endpoint accepts `strict`.
    """
    name = re.sub("[^0-9A-Za-z_-]+", "_", str(schema.get("title", ""))).strip("_")[:64] or "answer"
    adapted, changes = adapt_answer(schema, dialect, strict=can_be_strict)
    asked: dict[str, Any] = {"name": name, "schema": adapted.schema}
    if can_be_strict:
        asked["strict"] = adapted.strict
    return {"type": "json_schema", "json_schema": asked}, changes
