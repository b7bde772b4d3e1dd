"""Writes what the documents say of the event protocol from the models, so that the two cannot part.

The tables of docs/protocol.md stand between markers; the prose around them is written by hand. The JSON Schema is a
file of its own beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic.alias_generators import to_camel

from rxloop.protocol import protocol_schema
from rxloop.protocol.envelope import EVENT_TYPES, Event, public_form

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/protocol.md")
SCHEMA = Path("docs/protocol.schema.json")
SHAPES = ("Message", "ToolCall", "Usage", "PendingInput", "ErrorInfo")
"""The shapes inside events that get a line of their own."""
_SIMPLE = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "object": "object"}


def main() -> int:
    """Write the documents, or say which of them are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document is stale")
    check: bool = parser.parse_args().check
    stale = [path for path, text in documents(ROOT) if not _same(ROOT / path, text)]
    if check:
        for path in stale:
            print(f"{path} is stale: run scripts/protocol", file=sys.stderr)
        return 1 if stale else 0
    for path, text in documents(ROOT):
        (ROOT / path).write_text(text, encoding="utf-8")
    print(f"written: {', '.join(map(str, stale)) or 'nothing, all is up to date'}")
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def documents(root: Path) -> Iterator[tuple[Path, str]]:
    """The documents as they should be."""
    schema = protocol_schema()
    yield SCHEMA, orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"
    page = (root / PAGE).read_text(encoding="utf-8")
    for name, table in tables(schema["$defs"]).items():
        page = with_table(page, name, table)
    yield PAGE, page


def with_table(page: str, name: str, table: str) -> str:
    """The page with another table between the markers of that name.

    Raises:
        LookupError: The page has no such markers, or has them twice.
    """
    between = re.compile(rf"(?<=<!-- {name}: generated -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)
    page, count = between.subn(lambda _: f"\n{table}\n", page)
    if count != 1:
        raise LookupError(f"{PAGE} needs the markers of {name!r} once, and has them {count} times")
    return page


def tables(defs: dict[str, Any]) -> dict[str, str]:
    """Every generated part of the page, by the name of its markers."""
    return {
        "envelope": _table(("field", "type", "meaning"), _envelope(defs)),
        "kinds": _table(("kind", "marble", "says", "kept", "for", "fields"), _kinds(defs)),
        "fields": "\n".join(_fields(defs)),
    }


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _wire_name(name: str) -> str:
    return Event.model_fields[name].alias or name


def _own(cls: type[Event]) -> list[str]:
    """The fields of a kind that are not of the envelope, as they are on the wire."""
    return [field.alias or name for name, field in cls.model_fields.items() if name not in Event.model_fields]


def _envelope(defs: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    properties = defs["CustomEvent"]["properties"]
    for name in Event.model_fields:
        wire = _wire_name(name)
        shape = "string" if wire == "kind" else shape_of(properties[wire])
        yield f"`{wire}`", shape, properties[wire].get("description", _UNSAID.get(wire, ""))


_UNSAID = {
    "version": "The version of the protocol.",
    "kind": "What the event says: one of the kinds below.",
    "metadata": "Anything else; left out where there is none.",
}


def _kinds(defs: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for kind, cls in EVENT_TYPES.items():
        kept = "durable" if cls.durable else "transient"
        visible = "public" if cls.visibility == "public" else "internal"
        if "hidden" in cls.model_fields:
            visible = "public, unless hidden"
        elif "public" in vars(cls):
            visible = "public, if people said it"
        definition = defs[cls.__name__]
        names = ", ".join(f"`{name}`{_mark(definition, name)}" for name in _own(cls))
        yield f"`{kind}`", f"`{cls.marble}`", _first_line(definition), kept, visible, names


def _fields(defs: dict[str, Any]) -> Iterator[str]:
    """Every field with its type, and the word that its model has on it."""
    for kind, cls in EVENT_TYPES.items():
        definition = defs[cls.__name__]
        yield f"* `{kind}`, in Python `{cls.__name__}`\n{_listed(definition, _own(cls), _seen(cls))}"
    for name in SHAPES:
        fields = _listed(defs[name], list(defs[name]["properties"]), _HIDDEN.get(name, {}))
        yield f"* {name}: {_first_line(defs[name])}\n{fields}"


def _listed(definition: dict[str, Any], names: list[str], seen: dict[str, str]) -> str:
    properties = definition["properties"]
    lines = [
        f"  * `{name}`{_mark(definition, name)} {shape_of(properties[name])}{_meaning(properties[name])}"
        f"{seen.get(name, '')}"
        for name in names
    ]
    return "\n".join(lines)


def _seen(cls: type[Event]) -> dict[str, str]:
    """What is to be said of the fields of which clients do not get all."""
    form = public_form(cls)
    parts = {to_camel(name): " *Not all of it is for clients.*" for name in form.parts}
    return parts | {to_camel(name): " *Not for clients.*" for name in form.private}


_HIDDEN = {"Message": {"providerState": " *Not for clients.*"}}


def _mark(definition: dict[str, Any], name: str) -> str:
    return "" if name in definition.get("required", []) else "?"


def _meaning(field: dict[str, Any]) -> str:
    said: str = field.get("description", "")
    return f". {said}" if said else ""


def _first_line(definition: dict[str, Any]) -> str:
    return definition["description"].partition("\n")[0]


def shape_of(schema: dict[str, Any]) -> str:
    """The type of a field in a few characters; null is not mentioned, because it means the same as absent."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(shape_of(choice) for choice in choices if choice.get("type") != "null"))
    if schema.get("type") == "array":
        inner = shape_of(schema.get("items", {}))
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    return _SIMPLE.get(schema.get("type", ""), "any")


if __name__ == "__main__":
    sys.exit(main())
