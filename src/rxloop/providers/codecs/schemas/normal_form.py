"""Normalisation of JSON Schemas of all drafts and dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin

from rxloop.providers.codecs.schemas.keyword_values import NORMALISERS, is_json
from rxloop.support.text import shorten_repr

Schema = dict[str, Any]

MAX_DEPTH = 60
"""Maximum nesting depth. Deeper schemas accept anything."""

_MAX_NOTES = 20

_MAX_PARTS = 20_000
"""Maximum number of schema parts that are searched for addresses."""

_REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))

_ADDRESSES = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))
"""Identifiers, which are dropped except for the root's `$id`."""

_SCHEMA_MAPS = frozenset(("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"))

_SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))

_SUBSCHEMAS = frozenset(
    (
        *("additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains"),
        *("propertyNames", "unevaluatedProperties", "unevaluatedItems"),
    )
)


class Notes:
    """Collects short change descriptions."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def add(self, path: str, change: str) -> None:
        """Add a unique note. Long notes are truncated."""
        note = f"{_shorten(path) or 'its root'}: {_shorten(change)}"
        if note not in self.all and len(self.all) <= _MAX_NOTES:
            self.all.append(note if len(self.all) < _MAX_NOTES else "and more")


def normalise_schema(schema: Any, notes: Notes) -> Schema:
    """Return a well-formed copy of a schema. Well-formed parts are not changed.

    In the result, all shared schemas are in `$defs` of the root, and all references point there.
    """
    return _Normaliser(schema, notes).normalise()


class _Normaliser:
    def __init__(self, schema: Any, notes: Notes) -> None:
        self._schema: Any = schema
        self._root: Schema = cast("Schema", schema) if isinstance(schema, dict) else {}
        self._notes = notes
        self._defs: Schema = {}
        self._moved_names: dict[str, str] = {}
        """New names in `$defs`, by original reference."""
        self._used_names: set[str] = set()
        """New names in `$defs`."""
        self._next_numbers: dict[str, int] = {}
        """Next number by base name."""
        self._pending: list[tuple[str, Any]] = []
        self._addresses: dict[str, Any] | None = None
        identity = self._root.get("$id", self._root.get("id"))
        self._identity = _split_reference("", identity)[0]

    def normalise(self) -> Schema:
        if self._schema is None:
            self._notes.add("", "there is no schema, so it accepts any arguments")
            return {}
        own = self._get_shared("$defs", {}) | self._get_shared("definitions", {})
        result = self.convert(self._schema, "", 0)
        defs = {name: self.convert(part, f"$defs.{name}", 1) for name, part in own.items()}
        while self._pending:
            name, part = self._pending.pop()
            defs[name] = self.convert(part, f"$defs.{name}", 1)
        for name in _find_circular(defs):
            self._notes.add(f"$defs.{name}", "it refers to nothing but itself, so it accepts anything")
            defs[name] = {}
        if not defs:
            result.pop("$defs", None)
        else:
            result["$defs"] = defs
        return result

    def convert(self, schema: Any, location: str, depth: int) -> Schema:
        if schema is False:
            return {"not": {}}
        if schema is None or schema is True or schema == {}:
            if location and schema != {}:
                self._notes.add(location, f"{schema!r} is sent as {{}}")
            return {}
        if not isinstance(schema, dict):
            self._notes.add(location, f"{shorten_repr(schema, 60)} is not a schema, so it accepts anything")
            return {}
        if depth > MAX_DEPTH:
            self._notes.add(location, "it is nested too deeply, so it accepts anything")
            return {}
        result: Schema = {}
        fields = cast("dict[Any, Any]", schema)
        for key, value in fields.items():
            if isinstance(key, str):
                self._normalise_keyword(result, key, value, location, depth)
        if isinstance(pattern := fields.get("pattern"), str) and "pattern" not in result:
            add_to_description(result, {"pattern": pattern})
        self._normalise_bounds(result, location)
        self._normalise_tuple(result, location)
        self._normalise_nullable(result, location)
        self._normalise_required(result, location)
        if "type" not in result and "$ref" not in result and (kind := _infer_type(result)):
            self._notes.add(location, f"type {kind!r} is added")
            result["type"] = kind
        return result

    def _normalise_keyword(self, result: Schema, key: str, value: Any, location: str, depth: int) -> None:
        path = f"{location}.{key}" if location else key
        if key in ("$defs", "definitions"):
            if depth == 0 and key == "definitions" and value:
                self._notes.add(path, "it is sent as $defs")
            if depth == 0 and self._get_shared(key, None) is not None:
                # Reserve the position; the content is set later.
                result["$defs"] = {}
            return
        if key in _REFERENCES:
            self._normalise_reference(result, value, path)
        elif key in _ADDRESSES and (location or key not in ("$id", "id")):
            return
        elif key in _SCHEMA_MAPS:
            self._normalise_map(result, key, value, path, depth)
        elif key in _SCHEMA_LISTS:
            parts = cast("list[Any]", value) if isinstance(value, list | tuple) else []
            if parts:
                result[key] = [self.convert(part, f"{path}.{n}", depth + 1) for n, part in enumerate(parts)]
            else:
                self._drop(path, value)
        elif key == "items" and isinstance(value, list | tuple):
            self._notes.add(path, "a list of schemas is sent as prefixItems")
            parts = cast("list[Any]", value)
            if parts:
                result["prefixItems"] = [self.convert(part, f"{path}.{n}", depth + 1) for n, part in enumerate(parts)]
        elif key in _SUBSCHEMAS:
            if isinstance(value, bool) and key != "items":
                result[key] = value
            elif isinstance(value, dict | bool):
                result[key] = self.convert(value, path, depth + 1)
            else:
                self._drop(path, value)
        elif (check := NORMALISERS.get(key)) is not None:
            normalised = check(value)
            if normalised is None:
                self._drop(path, value)
            else:
                result[key] = normalised
                if normalised != value:
                    self._notes.add(path, f"{shorten_repr(value, 60)} is sent as {shorten_repr(normalised, 60)}")
        elif is_json(value):
            result[key] = value
        else:
            self._drop(path, value)

    def _normalise_map(self, result: Schema, key: str, value: Any, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            self._drop(path, value)
            return
        result[key] = {
            name: self.convert(part, f"{path}.{name}", depth + 1)
            for name, part in cast("dict[Any, Any]", value).items()
            if isinstance(name, str)
        }

    def _drop(self, path: str, value: Any) -> None:
        self._notes.add(path, f"{shorten_repr(value, 60)} is not a valid value and is left out")

    def _normalise_bounds(self, result: Schema, location: str) -> None:
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            flag = result.get(exclusive)
            if isinstance(flag, bool):
                # In draft 4, booleans modify the other keyword.
                self._notes.add(location, f"{exclusive}: {flag} is sent as a number".replace("False", "false"))
                del result[exclusive]
                if flag and limit in result:
                    result[exclusive] = result.pop(limit)

    def _normalise_tuple(self, result: Schema, location: str) -> None:
        others = result.pop("additionalItems", None)
        if "prefixItems" in result and "items" not in result and others is not None:
            result["items"] = {} if others is True else {"not": {}} if others is False else others
        elif others is not None:
            self._notes.add(location, "additionalItems is left out, since it has no effect")

    def _normalise_nullable(self, result: Schema, location: str) -> None:
        if "nullable" not in result:
            return
        nullable = result.pop("nullable")
        if nullable is not True:
            self._notes.add(location, "nullable is left out")
            return
        self._notes.add(location, "nullable is sent as the type null")
        kinds = result.get("type")
        if "enum" in result and None not in result["enum"]:
            result["enum"] = [*result["enum"], None]
        if isinstance(kinds, str | list):
            several = [kinds] if isinstance(kinds, str) else cast("list[str]", kinds)
            result["type"] = several if "null" in several else [*several, "null"]
        elif "enum" not in result and result:
            inner = {name: value for name, value in result.items() if name != "$defs"}
            result.clear()
            result["anyOf"] = [inner, {"type": "null"}]

    def _normalise_required(self, result: Schema, location: str) -> None:
        if not result.get("required"):
            return
        if "properties" not in result and result.get("type") != "object":
            return
        if any(key in result for key in ("anyOf", "oneOf", "allOf", "$ref", "if")):
            return
        fields: Schema = result.get("properties", {})
        missing = [name for name in result["required"] if name not in fields]
        if missing and result.get("additionalProperties") is False:
            self._notes.add(
                location, f"required names {', '.join(missing)}, which are not allowed, so they are left out"
            )
            result["required"] = [name for name in result["required"] if name in fields]
        elif missing:
            self._notes.add(location, f"properties has {', '.join(missing)} as well, since they are required")
            result["properties"] = fields | {name: {} for name in missing}

    def _get_shared(self, key: str, default: Any) -> Any:
        shared = self._root.get(key)
        return cast("Schema", shared) if isinstance(shared, dict) else default

    def _normalise_reference(self, result: Schema, value: Any, location: str) -> None:
        address, pointer = _split_reference(self._identity, value)
        path = [unquote(step).replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        own = address == self._identity and (not pointer or pointer.startswith("/"))
        target = (self._resolve_pointer(path) if own else None) or self._find_address(address, pointer, path)
        if target is None:
            self._notes.add(location, f"nothing is at {shorten_repr(value, 60)}, so it accepts anything")
            return
        if own and len(path) == 2 and path[0] in ("$defs", "definitions") and path[1] in self._get_shared(path[0], {}):
            name = path[1]
        else:
            name = self._moved_names.get(value, "")
            if not name:
                name = self._moved_names[value] = self._make_name(path[-1] if path else pointer or "root")
                self._used_names.add(name)
                self._pending.append((name, target[0]))
                self._notes.add(location, f"{shorten_repr(value, 60)} is sent as a schema of its own in $defs")
        result["$ref"] = f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in self._used_names and result["$ref"] != value:
            self._notes.add(location, f"{shorten_repr(value, 60)} is sent as {result['$ref']!r}")

    def _resolve_pointer(self, path: list[str]) -> tuple[Any] | None:
        node: Any = self._root
        for step in path:
            if isinstance(node, dict) and step in node:
                node = cast("Schema", node)[step]
            elif isinstance(node, list) and step.isdigit() and int(step) < len(cast("list[Any]", node)):
                node = cast("list[Any]", node)[int(step)]
            else:
                return None
        if not path:
            node = {name: part for name, part in self._root.items() if name not in ("$defs", "definitions")}
        return (cast("Any", node),) if isinstance(node, dict | bool) else None

    def _find_address(self, address: str, pointer: str, path: list[str]) -> tuple[Any] | None:
        """Find a schema by address, anchor or nested `$defs`."""
        if self._addresses is None:
            self._addresses = _collect_addresses(self._root, self._identity)
        if not pointer.startswith("/"):
            at = f"{address}#{pointer}" if pointer else address
        elif len(path) == 2 and path[0] in ("$defs", "definitions"):
            at = f"{address}#/{path[1]}"
        else:
            return None
        return (self._addresses[at],) if at in self._addresses else None

    def _make_name(self, preferred: str) -> str:
        base = name = re.sub("[^0-9A-Za-z_]", "_", preferred) or "part"
        shared = self._get_shared("$defs", {}), self._get_shared("definitions", {}), self._used_names
        number = self._next_numbers.get(base, 1)
        while any(name in names for names in shared):
            number += 1
            name = f"{base}_{number}"
        self._next_numbers[base] = number
        return name


def _split_reference(base: str, reference: Any) -> tuple[str, str]:
    """Split a reference into its absolute address and a JSON pointer or anchor."""
    if not isinstance(reference, str):
        return base, "?"
    try:
        url, pointer = urldefrag(reference)
        return (urljoin(base, url) if url else base), pointer
    except ValueError:
        return base, "?"


def _collect_addresses(root: Schema, identity: str) -> dict[str, Any]:
    """Index schemas by address and anchor, and shared schemas by name."""
    addresses: dict[str, Any] = {}
    pending: list[tuple[Any, str]] = [(root, identity)]
    for node, base in pending:
        if isinstance(node, list):
            pending += ((part, base) for part in cast("list[Any]", node))
        if not isinstance(node, dict) or len(pending) > _MAX_PARTS:
            continue
        schema = cast("Schema", node)
        if isinstance(own := schema.get("$id", schema.get("id")), str):
            base = _split_reference(base, own)[0]
            addresses.setdefault(base, schema)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                addresses.setdefault(f"{base}#{name}", schema)
        for key in ("$defs", "definitions"):
            if isinstance(shared := schema.get(key), dict):
                for name, part in cast("Schema", shared).items():
                    for address in {base, identity}:
                        addresses.setdefault(f"{address}#/{name}", part)
        pending += ((part, base) for part in schema.values())
    return addresses


def map_subschemas(schema: Schema, location: str, change: Callable[[Schema, str], Any]) -> Schema:
    """Return a copy of a normalised schema with each direct subschema replaced by the result of `change`."""
    result: Schema = {}
    for key, value in schema.items():
        path = f"{location}.{key}" if location else key
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            parts = cast("dict[str, Schema]", value)
            result[key] = {name: change(part, f"{path}.{name}") for name, part in parts.items()}
        elif key in _SCHEMA_LISTS:
            result[key] = [change(part, f"{path}.{number}") for number, part in enumerate(cast("list[Schema]", value))]
        else:
            inner = key in _SUBSCHEMAS and isinstance(value, dict)
            result[key] = change(cast("Schema", value), path) if inner else value
    return result


def resolve_reference(reference: str, defs: Schema) -> Schema | None:
    """Return the shared schema that a reference in a normalised schema points to."""
    name = reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
    return defs.get(name)


def _find_circular(defs: Schema) -> list[str]:
    """Return the names of shared schemas that refer to themselves through references only."""
    targets = {id(part): name for name, part in defs.items()}
    following = {
        name: targets.get(id(resolve_reference(part["$ref"], defs))) for name, part in defs.items() if "$ref" in part
    }
    circular: set[str] = set()
    visited: dict[str, str] = {}
    for first in defs:
        # Each schema is visited once. A cycle ends where it reaches a schema that was visited from the same one.
        name: str | None = first
        while name is not None and name not in visited:
            visited[name] = first
            name = following.get(name)
        while name is not None and visited[name] == first and name not in circular:
            circular.add(name)
            name = following.get(name)
    return [name for name in defs if name in circular]


def add_to_description(schema: Schema, constraints: Mapping[str, Any]) -> None:
    """Append constraints to the description, since they will not be enforced."""
    text = "{" + ", ".join(f"{name}: {value}" for name, value in constraints.items()) + "}"
    schema["description"] = "\n\n".join(filter(None, (schema.get("description"), text)))


def _infer_type(schema: Schema) -> str | None:
    """Infer the type from other keywords."""
    if any(key in schema for key in ("anyOf", "oneOf", "allOf", "enum", "const", "not", "if")):
        return None
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else None


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:120]}...{text[-70:]}"
