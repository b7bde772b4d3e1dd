"""Command `protocol`: event reference generated from the event classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, cast

import orjson
import typer
from rich.text import Text

from rxloop.cli.terminal import reporting, say, table, write
from rxloop.errors import ConfigurationError
from rxloop.protocol.envelope import EVENT_TYPES, PROTOCOL_VERSION, Event
from rxloop.protocol.events import protocol_schema

Schema = Mapping[str, Any]

_REFERENCE = "#/$defs/"


def protocol(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="One of them, such as tool-complete.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write the JSON Schema.")] = False,
) -> None:
    """List the kinds of events, or the fields of one."""
    with reporting():
        cls = None if kind is None else _find(kind)
        schema = protocol_schema()
        if json:
            wanted = schema if cls is None else _alone(cls, schema["$defs"])
            write(orjson.dumps(wanted, option=orjson.OPT_INDENT_2).decode() + "\n")
        elif cls is None:
            _list(schema["$defs"])
        else:
            _show(cls, schema["$defs"])


def _find(given: str) -> type[Event]:
    """Find an event class using its kind or class name.

    Raises:
        ConfigurationError: The kind does not exist.
    """
    for kind, cls in EVENT_TYPES.items():
        if given.lower().replace("_", "-") == kind or given == cls.__name__:
            return cls
    close = get_close_matches(given, EVENT_TYPES, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigurationError(f"there is no kind {given!r}: {hint}the kinds are {', '.join(EVENT_TYPES)}")


def _list(defs: Schema) -> None:
    rows = [
        (kind, *_durability_and_audience(cls), _first_line(defs[cls.__name__])) for kind, cls in EVENT_TYPES.items()
    ]
    write(Text(f"version {PROTOCOL_VERSION} of the protocol; every event has ", "dim"))
    write(Text(", ".join(_alias(name) for name in Event.model_fields) + "\n\n", "dim"))
    write(table(("KIND", "KEPT", "FOR", "SAYS"), rows, lambda place, _: "cyan" if not place else "", wrap=True))
    say("rxloop protocol KIND shows the fields of one")


def _show(cls: type[Event], defs: Schema) -> None:
    definition = defs[cls.__name__]
    kept, seen = _durability_and_audience(cls)
    kind = cls.model_fields["kind"].default
    write(Text.assemble((kind, "bold cyan"), f"  {cls.__name__}, {kept}, {seen}\n{_first_line(definition)}\n\n"))
    own = [_alias(name, cls) for name in cls.model_fields if name not in Event.model_fields]
    write(_fields(definition, own))
    for name in sorted(_referred({name: definition["properties"][name] for name in own}, defs)):
        write(Text.assemble("\n", (name, "bold"), f"  {_first_line(defs[name])}\n"))
        write(_fields(defs[name], list(defs[name].get("properties", ()))))
    write(Text("\nand, as every event:\n", "dim"))
    write(_fields(definition, [_alias(name) for name in Event.model_fields]))


def _durability_and_audience(cls: type[Event]) -> tuple[str, str]:
    """Return the durability and visibility of an event class."""
    seen = "unless hidden" if "hidden" in cls.model_fields else "public"
    return "durable" if cls.durable else "transient", seen if cls.visibility == "public" else cls.visibility


def _fields(definition: Schema, names: Sequence[str]) -> Text:
    required = definition.get("required", ())
    properties = definition["properties"]
    rows = [
        (
            f"  {name}{'' if name in required else '?'}",
            _shape(properties[name]),
            " ".join(properties[name].get("description", "").split()),
        )
        for name in names
    ]
    return table(("  FIELD", "TYPE", "MEANS"), rows, lambda place, _: ("green", "yellow", "")[place], wrap=True)


def _shape(schema: Schema) -> str:
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
        return " | ".join(dict.fromkeys(_shape(option) for option in options))
    if schema.get("type") == "array":
        item = _shape(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    return schema.get("type", "any")


def _alias(name: str, cls: type[Event] = Event) -> str:
    return cls.model_fields[name].alias or name


def _first_line(definition: Schema) -> str:
    return re.split(r"\n\s*\n", definition.get("description", ""))[0].replace("\n", " ")


def _alone(cls: type[Event], defs: Schema) -> dict[str, Any]:
    """Return the schema for a single event class, including referenced definitions."""
    definition = defs[cls.__name__]
    parts = {name: defs[name] for name in sorted(_referred(definition, defs))}
    return {**definition, **({"$defs": parts} if parts else {})}


def _referred(schema: Any, defs: Schema) -> set[str]:
    """Return the names of all definitions referenced by a schema, directly or indirectly."""
    found: set[str] = set()
    waiting = list(_references(schema))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(defs[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast("dict[str, Any]", schema).items():
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            yield from _references(inner)
