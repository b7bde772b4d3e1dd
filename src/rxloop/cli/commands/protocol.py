"""Command `protocol`: event reference generated from the event classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import orjson
import typer
from rich.text import Text

from rxloop._names import find_nearest
from rxloop.cli.suggestions import suggest_events
from rxloop.cli.terminal import format_table, notify, report_errors, write
from rxloop.errors import ConfigurationError
from rxloop.protocol.envelope import EVENT_TYPES, PROTOCOL_VERSION, Event
from rxloop.protocol.events import protocol_schema

Schema = Mapping[str, Any]

_REFERENCE = "#/$defs/"


def protocol(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="Event kind (for example tool-complete).", autocompletion=suggest_events),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON Schema.")] = False,
) -> None:
    """List event kinds, or describe one of them."""
    with report_errors():
        cls = None if kind is None else _find_class(kind)
        schema = protocol_schema()
        if json:
            output = schema if cls is None else _make_schema(cls, schema["$defs"])
            write(orjson.dumps(output, option=orjson.OPT_INDENT_2).decode() + "\n")
        elif cls is None:
            _list_kinds(schema["$defs"])
        else:
            _show_class(cls, schema["$defs"])


def _find_class(name: str) -> type[Event]:
    """Find an event class using its kind or class name.

    Raises:
        ConfigurationError: The kind is unknown.
    """
    for kind, cls in EVENT_TYPES.items():
        if name.lower().replace("_", "-") == kind or name == cls.__name__:
            return cls
    nearest = find_nearest(name, EVENT_TYPES)
    hint = "" if nearest is None else f"did you mean {nearest}? "
    raise ConfigurationError(f"unknown event kind {name!r}: {hint}the kinds are {', '.join(EVENT_TYPES)}")


def _list_kinds(defs: Schema) -> None:
    rows = [(kind, *_describe_audience(cls), _get_first_line(defs[cls.__name__])) for kind, cls in EVENT_TYPES.items()]
    write(Text(f"protocol version {PROTOCOL_VERSION}; fields of all events: ", "dim"))
    write(Text(", ".join(_get_alias(name) for name in Event.model_fields) + "\n\n", "dim"))
    head = ("KIND", "STORAGE", "AUDIENCE", "DESCRIPTION")
    write(format_table(head, rows, lambda index, _: "cyan" if not index else "", wrap=True))
    notify("rxloop protocol KIND shows the fields of an event")


def _show_class(cls: type[Event], defs: Schema) -> None:
    definition = defs[cls.__name__]
    durability, audience = _describe_audience(cls)
    kind = cls.model_fields["kind"].default
    summary = f"  {cls.__name__}, {durability}, {audience}\n{_get_first_line(definition)}\n\n"
    write(Text.assemble((kind, "bold cyan"), summary))
    own = [_get_alias(name, cls) for name in cls.model_fields if name not in Event.model_fields]
    write(_format_fields(definition, own))
    for name in sorted(_find_references({name: definition["properties"][name] for name in own}, defs)):
        write(Text.assemble("\n", (name, "bold"), f"  {_get_first_line(defs[name])}\n"))
        write(_format_fields(defs[name], list(defs[name].get("properties", ()))))
    write(Text("\nfields of all events:\n", "dim"))
    write(_format_fields(definition, [_get_alias(name) for name in Event.model_fields]))


def _describe_audience(cls: type[Event]) -> tuple[str, str]:
    """Return the durability and visibility of an event class."""
    audience = "unless hidden" if "hidden" in cls.model_fields else "public"
    return "durable" if cls.durable else "transient", audience if cls.visibility == "public" else cls.visibility


def _format_fields(definition: Schema, names: Sequence[str]) -> Text:
    required = definition.get("required", ())
    properties = definition["properties"]
    rows = [
        (
            f"  {name}{'' if name in required else '?'}",
            _format_type(properties[name]),
            " ".join(properties[name].get("description", "").split()),
        )
        for name in names
    ]
    head = ("  FIELD", "TYPE", "DESCRIPTION")
    return format_table(head, rows, lambda index, _: ("green", "yellow", "")[index], wrap=True)


def _format_type(schema: Schema) -> str:
    """Format a JSON schema type for display."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return reference.removeprefix(_REFERENCE)
    if "const" in schema:
        return repr(schema["const"]).replace("'", '"')
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " | ".join(dict.fromkeys(_format_type(option) for option in options))
    if schema.get("type") == "array":
        item = _format_type(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    return schema.get("type", "any")


def _get_alias(name: str, cls: type[Event] = Event) -> str:
    return cls.model_fields[name].alias or name


def _get_first_line(definition: Schema) -> str:
    return re.split(r"\n\s*\n", definition.get("description", ""))[0].replace("\n", " ")


def _make_schema(cls: type[Event], defs: Schema) -> dict[str, Any]:
    """Return the schema for a single event class, including referenced definitions."""
    definition = defs[cls.__name__]
    parts = {name: defs[name] for name in sorted(_find_references(definition, defs))}
    return {**definition, **({"$defs": parts} if parts else {})}


def _find_references(schema: Any, defs: Schema) -> set[str]:
    """Return the names of all definitions referenced by a schema, directly or indirectly."""
    names: set[str] = set()
    pending = list(_iter_references(schema))
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending += _iter_references(defs[name])
    return names


def _iter_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast("dict[str, Any]", schema).items():
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _iter_references(value)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            yield from _iter_references(inner)
