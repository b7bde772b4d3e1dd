"""Normalisation of JSON Schemas of all drafts and dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin

from rxloop.providers.codecs.schemas.keyword_values import FORMS, is_json

Schema = dict[str, Any]

DEPTH = 60
"""Maximum nesting depth. Deeper schemas accept anything."""

_MOST_NOTES = 20

_MOST_PARTS = 20_000
"""Maximum number of schema parts that are searched for addresses."""

_REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))

_ADDRESSES = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))
"""Identifiers, which are dropped except for the root's `$id`."""

_NAMED = frozenset(("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"))

_SEVERAL = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))

_ONE = frozenset(
    (
        *("additionalProperties", "items", "additionalItems", "not", "if", "then", "else", "contains"),
        *("propertyNames", "unevaluatedProperties", "unevaluatedItems"),
    )
)


class Notes:
    """Collects short change descriptions."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Add a unique note. Long notes are truncated."""
        note = f"{_middle_cut(where) or 'its root'}: {_middle_cut(what)}"
        if note not in self.all and len(self.all) <= _MOST_NOTES:
            self.all.append(note if len(self.all) < _MOST_NOTES else "and more")


def normalised(schema: Any, notes: Notes) -> Schema:
    """Return a well-formed copy of a schema. Well-formed parts are not changed.

    In the result, all shared schemas are in `$defs` of the root, and all references point there.
    """
    return _Normaliser(schema, notes).root()


class _Normaliser:
    def __init__(self, schema: Any, notes: Notes) -> None:
        self._whole: Any = schema
        self._given: Schema = cast("Schema", schema) if isinstance(schema, dict) else {}
        self._notes = notes
        self._defs: Schema = {}
        self._moved: dict[str, str] = {}
        """New names in `$defs`, by original reference."""
        self._open: list[tuple[str, Any]] = []
        self._addresses: dict[str, Any] | None = None
        identity = self._given.get("$id", self._given.get("id"))
        self._identity = _split("", identity)[0]

    def root(self) -> Schema:
        if self._whole is None:
            self._notes.add("", "there is no schema, so it accepts any arguments")
            return {}
        own = self._shared("$defs", {}) | self._shared("definitions", {})
        made = self.node(self._whole, "", 0)
        defs = {name: self.node(part, f"$defs.{name}", 1) for name, part in own.items()}
        while self._open:
            name, part = self._open.pop()
            defs[name] = self.node(part, f"$defs.{name}", 1)
        for name in _endless(defs):
            self._notes.add(f"$defs.{name}", "it refers to nothing but itself, so it accepts anything")
            defs[name] = {}
        if not defs:
            made.pop("$defs", None)
        else:
            made["$defs"] = defs
        return made

    def node(self, given: Any, where: str, depth: int) -> Schema:
        if given is False:
            return {"not": {}}
        if given is None or given is True or given == {}:
            if where and given != {}:
                self._notes.add(where, f"{given!r} is sent as {{}}")
            return {}
        if not isinstance(given, dict):
            self._notes.add(where, f"{_shown(given)} is not a schema, so it accepts anything")
            return {}
        if depth > DEPTH:
            self._notes.add(where, "it is nested too deeply, so it accepts anything")
            return {}
        made: Schema = {}
        fields = cast("dict[Any, Any]", given)
        for key, value in fields.items():
            if isinstance(key, str):
                self._keyword(made, key, value, where, depth)
        if isinstance(pattern := fields.get("pattern"), str) and "pattern" not in made:
            describe(made, {"pattern": pattern})
        self._bounds(made, where)
        self._tuple(made, where)
        self._nullable(made, where)
        self._required(made, where)
        if "type" not in made and "$ref" not in made and (kind := _implied(made)):
            self._notes.add(where, f"type {kind!r} is added")
            made["type"] = kind
        return made

    def _keyword(self, made: Schema, key: str, value: Any, where: str, depth: int) -> None:
        place = f"{where}.{key}" if where else key
        if key in ("$defs", "definitions"):
            if depth == 0 and key == "definitions" and value:
                self._notes.add(place, "it is sent as $defs")
            if depth == 0 and self._shared(key, None) is not None:
                # Reserve the position; the content is set later.
                made["$defs"] = {}
            return
        if key in _REFERENCES:
            self._reference(made, value, place)
        elif key in _ADDRESSES and (where or key not in ("$id", "id")):
            return
        elif key in _NAMED:
            self._by_name(made, key, value, place, depth)
        elif key in _SEVERAL:
            parts = cast("list[Any]", value) if isinstance(value, list | tuple) else []
            if parts:
                made[key] = [self.node(part, f"{place}.{n}", depth + 1) for n, part in enumerate(parts)]
            else:
                self._drop(place, value)
        elif key == "items" and isinstance(value, list | tuple):
            self._notes.add(place, "a list of schemas is sent as prefixItems")
            parts = cast("list[Any]", value)
            if parts:
                made["prefixItems"] = [self.node(part, f"{place}.{n}", depth + 1) for n, part in enumerate(parts)]
        elif key in _ONE:
            if isinstance(value, bool) and key != "items":
                made[key] = value
            elif isinstance(value, dict | bool):
                made[key] = self.node(value, place, depth + 1)
            else:
                self._drop(place, value)
        elif (check := FORMS.get(key)) is not None:
            kept = check(value)
            if kept is None:
                self._drop(place, value)
            else:
                made[key] = kept
                if kept != value:
                    self._notes.add(place, f"{_shown(value)} is sent as {_shown(kept)}")
        elif is_json(value):
            made[key] = value
        else:
            self._drop(place, value)

    def _by_name(self, made: Schema, key: str, value: Any, place: str, depth: int) -> None:
        if not isinstance(value, dict):
            self._drop(place, value)
            return
        made[key] = {
            name: self.node(part, f"{place}.{name}", depth + 1)
            for name, part in cast("dict[Any, Any]", value).items()
            if isinstance(name, str)
        }

    def _drop(self, place: str, value: Any) -> None:
        self._notes.add(place, f"{_shown(value)} is not a valid value and is left out")

    def _bounds(self, made: Schema, where: str) -> None:
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            flag = made.get(exclusive)
            if isinstance(flag, bool):
                # In draft 4, booleans modify the other keyword.
                self._notes.add(where, f"{exclusive}: {flag} is sent as a number".replace("False", "false"))
                del made[exclusive]
                if flag and limit in made:
                    made[exclusive] = made.pop(limit)

    def _tuple(self, made: Schema, where: str) -> None:
        others = made.pop("additionalItems", None)
        if "prefixItems" in made and "items" not in made and others is not None:
            made["items"] = {} if others is True else {"not": {}} if others is False else others
        elif others is not None:
            self._notes.add(where, "additionalItems is left out, since it has no effect")

    def _nullable(self, made: Schema, where: str) -> None:
        if "nullable" not in made:
            return
        nullable = made.pop("nullable")
        if nullable is not True:
            self._notes.add(where, "nullable is left out")
            return
        self._notes.add(where, "nullable is sent as the type null")
        kinds = made.get("type")
        if "enum" in made and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        if isinstance(kinds, str | list):
            several = [kinds] if isinstance(kinds, str) else cast("list[str]", kinds)
            made["type"] = several if "null" in several else [*several, "null"]
        elif "enum" not in made and made:
            inner = {name: value for name, value in made.items() if name != "$defs"}
            made.clear()
            made["anyOf"] = [inner, {"type": "null"}]

    def _required(self, made: Schema, where: str) -> None:
        if not made.get("required"):
            return
        if "properties" not in made and made.get("type") != "object":
            return
        if any(key in made for key in ("anyOf", "oneOf", "allOf", "$ref", "if")):
            return
        fields: Schema = made.get("properties", {})
        missing = [name for name in made["required"] if name not in fields]
        if missing and made.get("additionalProperties") is False:
            self._notes.add(where, f"required names {', '.join(missing)}, which are not allowed, so they are left out")
            made["required"] = [name for name in made["required"] if name in fields]
        elif missing:
            self._notes.add(where, f"properties has {', '.join(missing)} as well, since they are required")
            made["properties"] = fields | {name: {} for name in missing}

    def _shared(self, key: str, default: Any) -> Any:
        given = self._given.get(key)
        return cast("Schema", given) if isinstance(given, dict) else default

    def _reference(self, made: Schema, value: Any, place: str) -> None:
        address, pointer = _split(self._identity, value)
        path = [unquote(step).replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        own = address == self._identity and (not pointer or pointer.startswith("/"))
        found = (self._found(path) if own else None) or self._addressed(address, pointer, path)
        if found is None:
            self._notes.add(place, f"nothing is at {_shown(value)}, so it accepts anything")
            return
        if own and len(path) == 2 and path[0] in ("$defs", "definitions") and path[1] in self._shared(path[0], {}):
            name = path[1]
        else:
            name = self._moved.get(value, "")
            if not name:
                name = self._moved[value] = self._free_name(path[-1] if path else pointer or "root")
                self._open.append((name, found[0]))
                self._notes.add(place, f"{_shown(value)} is sent as a schema of its own in $defs")
        made["$ref"] = f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in self._moved.values() and made["$ref"] != value:
            self._notes.add(place, f"{_shown(value)} is sent as {made['$ref']!r}")

    def _found(self, path: list[str]) -> tuple[Any] | None:
        found: Any = self._given
        for step in path:
            if isinstance(found, dict) and step in found:
                found = cast("Schema", found)[step]
            elif isinstance(found, list) and step.isdigit() and int(step) < len(cast("list[Any]", found)):
                found = cast("list[Any]", found)[int(step)]
            else:
                return None
        if not path:
            found = {name: part for name, part in self._given.items() if name not in ("$defs", "definitions")}
        return (cast("Any", found),) if isinstance(found, dict | bool) else None

    def _addressed(self, address: str, pointer: str, path: list[str]) -> tuple[Any] | None:
        """Find a schema by address, anchor or nested `$defs`."""
        if self._addresses is None:
            self._addresses = _addresses(self._given, self._identity)
        if not pointer.startswith("/"):
            at = f"{address}#{pointer}" if pointer else address
        elif len(path) == 2 and path[0] in ("$defs", "definitions"):
            at = f"{address}#/{path[1]}"
        else:
            return None
        return (self._addresses[at],) if at in self._addresses else None

    def _free_name(self, wanted: str) -> str:
        base = name = re.sub("[^0-9A-Za-z_]", "_", wanted) or "part"
        used = {*self._shared("$defs", {}), *self._shared("definitions", {}), *self._moved.values()}
        number = 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        return name


def _split(base: str, reference: Any) -> tuple[str, str]:
    """Split a reference into its absolute address and a JSON pointer or anchor."""
    if not isinstance(reference, str):
        return base, "?"
    try:
        url, pointer = urldefrag(reference)
        return (urljoin(base, url) if url else base), pointer
    except ValueError:
        return base, "?"


def _addresses(whole: Schema, identity: str) -> dict[str, Any]:
    """Index schemas by address and anchor, and shared schemas by name."""
    found: dict[str, Any] = {}
    waiting: list[tuple[Any, str]] = [(whole, identity)]
    for given, base in waiting:
        if isinstance(given, list):
            waiting += ((part, base) for part in cast("list[Any]", given))
        if not isinstance(given, dict) or len(waiting) > _MOST_PARTS:
            continue
        schema = cast("Schema", given)
        if isinstance(own := schema.get("$id", schema.get("id")), str):
            base = _split(base, own)[0]
            found.setdefault(base, schema)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                found.setdefault(f"{base}#{name}", schema)
        for key in ("$defs", "definitions"):
            if isinstance(shared := schema.get(key), dict):
                for name, part in cast("Schema", shared).items():
                    for place in {base, identity}:
                        found.setdefault(f"{place}#/{name}", part)
        waiting += ((part, base) for part in schema.values())
    return found


def mapped(schema: Schema, where: str, change: Callable[[Schema, str], Any]) -> Schema:
    """Return a copy of a normalised schema with each direct subschema replaced by the result of `change`."""
    made: Schema = {}
    for key, value in schema.items():
        place = f"{where}.{key}" if where else key
        if key in _NAMED and isinstance(value, dict):
            parts = cast("dict[str, Schema]", value)
            made[key] = {name: change(part, f"{place}.{name}") for name, part in parts.items()}
        elif key in _SEVERAL:
            made[key] = [change(part, f"{place}.{number}") for number, part in enumerate(cast("list[Schema]", value))]
        else:
            inner = key in _ONE and isinstance(value, dict)
            made[key] = change(cast("Schema", value), place) if inner else value
    return made


def target_of(reference: str, defs: Schema) -> Schema | None:
    """Return the shared schema that a reference in a normalised schema points to."""
    name = reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
    return defs.get(name)


def _endless(defs: Schema) -> list[str]:
    """Return the names of shared schemas that refer to themselves through references only."""
    found: list[str] = []
    for name in defs:
        part: Schema | None = defs[name]
        for _ in defs:
            reference = None if part is None else part.get("$ref")
            part = None if reference is None else target_of(reference, defs)
            if part is defs[name]:
                found.append(name)
                break
    return found


def describe(schema: Schema, rest: Mapping[str, Any]) -> None:
    """Append constraints to the description, since they will not be enforced."""
    words = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
    schema["description"] = "\n\n".join(filter(None, (schema.get("description"), words)))


def _implied(made: Schema) -> str | None:
    """Infer the type from other keywords."""
    if any(key in made for key in ("anyOf", "oneOf", "allOf", "enum", "const", "not", "if")):
        return None
    if "properties" in made:
        return "object"
    return "array" if "items" in made or "prefixItems" in made else None


def _middle_cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:120]}...{text[-70:]}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
