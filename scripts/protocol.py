"""Generate the event protocol documentation from the event models.

Only the tables of docs/protocol.md are generated. They are between markers. docs/protocol.schema.json is generated
completely.
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
SHAPES = ("Message", "ToolCall", "Usage", "PendingInput", "ErrorInfo", "PartTokens", "RequestRecord", "RecordedPart")
"""Nested models that are listed separately."""
_SIMPLE = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "object": "object"}


def main() -> int:
    """Update the documents, or check whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the documents are up to date")
    check: bool = parser.parse_args().check
    stale = [path for path, text in make_documents(ROOT) if not _is_current(ROOT / path, text)]
    if check:
        for path in stale:
            print(f"{path} is stale: run scripts/protocol", file=sys.stderr)
        return 1 if stale else 0
    for path, text in make_documents(ROOT):
        (ROOT / path).write_text(text, encoding="utf-8")
    print(f"updated: {', '.join(map(str, stale)) or 'none'}")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def make_documents(root: Path) -> Iterator[tuple[Path, str]]:
    """Return the current content of the documents."""
    schema = protocol_schema()
    yield SCHEMA, orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() + "\n"
    page = (root / PAGE).read_text(encoding="utf-8")
    for name, table in make_tables(schema["$defs"]).items():
        page = replace_table(page, name, table)
    yield PAGE, page


def replace_table(page: str, name: str, table: str) -> str:
    """Replace the table between the markers of this name.

    Raises:
        LookupError: The markers are missing or not unique.
    """
    markers = re.compile(rf"(?<=<!-- {name}: generated -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)
    page, count = markers.subn(lambda _: f"\n{table}\n", page)
    if count != 1:
        raise LookupError(f"{PAGE} must contain the markers of {name!r} once, got {count}")
    return page


def make_tables(defs: dict[str, Any]) -> dict[str, str]:
    """Generate all tables, keyed by marker name."""
    return {
        "envelope": _format_table(("field", "type", "meaning"), _envelope_rows(defs)),
        "kinds": _format_table(("kind", "marble", "description", "type", "visibility", "fields"), _kind_rows(defs)),
        "fields": "\n".join(_field_lines(defs)),
    }


def _format_table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _wire_name(name: str) -> str:
    return Event.model_fields[name].alias or name


def _list_own_fields(cls: type[Event]) -> list[str]:
    """Return the JSON names of an event's fields, excluding the envelope."""
    return [field.alias or name for name, field in cls.model_fields.items() if name not in Event.model_fields]


def _envelope_rows(defs: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    properties = defs["CustomEvent"]["properties"]
    for name in Event.model_fields:
        wire = _wire_name(name)
        shape = "string" if wire == "kind" else format_type(properties[wire])
        yield f"`{wire}`", shape, properties[wire].get("description", _MISSING_DESCRIPTIONS.get(wire, ""))


_MISSING_DESCRIPTIONS = {
    "version": "Protocol version.",
    "kind": "Event kind, listed below.",
}


def _kind_rows(defs: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for kind, cls in EVENT_TYPES.items():
        durability = "durable" if cls.durable else "transient"
        visible = "public" if cls.visibility == "public" else "internal"
        if "hidden" in cls.model_fields:
            visible = "public unless hidden"
        elif "public" in vars(cls):
            visible = "public if sent by a user"
        definition = defs[cls.__name__]
        names = ", ".join(f"`{name}`{_mark(definition, name)}" for name in _list_own_fields(cls))
        yield f"`{kind}`", f"`{cls.marble}`", _first_line(definition), durability, visible, names


def _field_lines(defs: dict[str, Any]) -> Iterator[str]:
    """Yield descriptions of all events and nested models, with their fields."""
    for kind, cls in EVENT_TYPES.items():
        definition = defs[cls.__name__]
        fields = _format_fields(definition, _list_own_fields(cls), _describe_privacy(cls))
        yield f"* `{kind}`, in Python `{cls.__name__}`\n{fields}"
    for name in SHAPES:
        fields = _format_fields(defs[name], list(defs[name]["properties"]), _HIDDEN.get(name, {}))
        yield f"* {name}: {_first_line(defs[name])}\n{fields}"


def _format_fields(definition: dict[str, Any], names: list[str], privacy: dict[str, str]) -> str:
    properties = definition["properties"]
    lines = [
        f"  * `{name}`{_mark(definition, name)} {format_type(properties[name])}{_meaning(properties[name])}"
        f"{privacy.get(name, '')}"
        for name in names
    ]
    return "\n".join(lines)


def _describe_privacy(cls: type[Event]) -> dict[str, str]:
    """Return privacy notes, keyed by the JSON names of private fields."""
    form = public_form(cls)
    parts = {to_camel(name): " *Partly private.*" for name in form.parts}
    return parts | {to_camel(name): " *Private.*" for name in form.private}


_HIDDEN = {"Message": {"providerState": " *Private.*"}}


def _mark(definition: dict[str, Any], name: str) -> str:
    return "" if name in definition.get("required", []) else "?"


def _meaning(field: dict[str, Any]) -> str:
    description = " ".join(field.get("description", "").split())
    return f". {description}" if description else ""


def _first_line(definition: dict[str, Any]) -> str:
    return definition["description"].partition("\n")[0]


def format_type(schema: dict[str, Any]) -> str:
    """Format the type of a field. Null is omitted, because null fields are equivalent to missing ones."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(format_type(choice) for choice in choices if choice.get("type") != "null"))
    if schema.get("type") == "array":
        inner = format_type(schema.get("items", {}))
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    return _SIMPLE.get(schema.get("type", ""), "any")


if __name__ == "__main__":
    sys.exit(main())
