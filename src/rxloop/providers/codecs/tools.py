"""Tool conversion for vendors, and translation of calls back to the original tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import orjson

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.schemas import Adapted, adapt_schema
from rxloop.providers.codecs.schemas.dialects import Dialect, short_hash
from rxloop.providers.codecs.schemas.normal_form import DEPTH, Schema, target_of

_REQUESTS = 4
"""Number of cached tool sets. Several agents may share a model."""

_KEPT = 2_000
"""Maximum number of cached schemas and reported changes."""

_ENDS = (". ", ".\n", "\n", " ")

_MORE = " (The system prompt has the rest of this description.)"

_REST = "More about the tool {name}:\n{rest}"


@dataclass(frozen=True, slots=True)
class Original:
    """Original tool for calls that use the vendor's names."""

    name: str
    schema: Schema
    """Parameters as sent to the vendor."""
    names: Mapping[str, str]
    """Original names of renamed parameters, by the vendor's names."""

    def written(self, arguments: str) -> str:
        """Translate JSON arguments to original parameter names. Other text is returned unchanged."""
        try:
            given: Any = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return arguments
        if not isinstance(given, dict):
            return arguments
        return dumps(self._value(given, [self.schema], 0)).decode()

    def _value(self, value: Any, schemas: Sequence[Schema], depth: int) -> Any:
        found = self._all_of(schemas) if depth <= DEPTH else []
        if isinstance(value, list):
            items = [schema for each in found for schema in _items(each)]
            parts = cast("list[Any]", value)
            return [self._value(each, items, depth + 1) for each in parts] if items else parts
        if not isinstance(value, dict):
            return value
        fields: dict[str, list[Schema]] = {}
        for each in found:
            for name, schema in each.get("properties", {}).items():
                fields.setdefault(name, []).append(schema)
        free = [each["additionalProperties"] for each in found if isinstance(each.get("additionalProperties"), dict)]
        return {
            (self.names.get(name, name) if name in fields else name): self._value(
                part, fields.get(name, free), depth + 1
            )
            for name, part in cast("dict[str, Any]", value).items()
        }

    def _all_of(self, schemas: Sequence[Schema]) -> list[Schema]:
        """Return schemas including all referenced and combined ones, without duplicates."""
        found: list[Schema] = []
        waiting = list(schemas)
        seen: set[int] = set()
        while waiting:
            schema = waiting.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append(schema)
            for key in ("anyOf", "oneOf", "allOf"):
                waiting += schema.get(key, [])
            waiting += [schema[key] for key in ("if", "then", "else") if isinstance(schema.get(key), dict)]
            if (reference := schema.get("$ref")) is not None:
                target = target_of(reference, self.schema.get("$defs", {}))
                waiting += [] if target is None else [target]
        return found


class VendorTool(NamedTuple):
    """Converted tool."""

    name: str
    description: str
    schema: Schema
    strict: bool
    definition: ToolDefinition


class VendorTools(NamedTuple):
    """Converted tools."""

    tools: tuple[VendorTool, ...] = ()
    originals: Mapping[str, Original] = {}
    """Original tools by the vendor's tool name; only tools with renamed parts."""
    rest: str = ""
    """Remainders of long descriptions, for the system prompt."""
    notes: tuple[str, ...] = ()
    """Descriptions of the changes."""

    def name_of(self, name: str) -> str:
        """Return the vendor's tool name."""
        return next((tool.name for tool in self.tools if tool.definition.name == name), name)


class ToolAdapter:
    """Converter of tools for one model. Results are cached, so that a request normally costs one comparison.

    Args:
        dialect: JSON Schema dialect of the vendor.
        strict: True if the vendor can enforce schemas.
        longest_description: Maximum length of a tool description in characters; None for no limit.
    """

    def __init__(self, dialect: Dialect, *, strict: bool, longest_description: int | None = None) -> None:
        self._dialect = dialect
        self._strict = strict
        self._longest = longest_description
        self._kept: dict[int, tuple[ToolDefinition, Adapted]] = {}
        self._told: set[str] = set()
        self._told_last: tuple[str, ...] = ()
        self._last: list[tuple[tuple[ToolDefinition, ...], VendorTools]] = [((), VendorTools())]

    def adapt(self, tools: tuple[ToolDefinition, ...]) -> VendorTools:
        """Convert tools, returning the same object if possible."""
        # Equal definitions are usually identical objects, which a tuple comparison detects immediately.
        for known, made in self._last:
            if known == tools:
                return made
        made = self._adapted(tools)
        self._last = [(tools, made), *self._last[: _REQUESTS - 1]]
        return made

    def tell(
        self, changes: tuple[str, ...], answer: str | None, name: str, notice: Callable[[NoticeCode, str], None]
    ) -> None:
        """Report schema changes that were not reported before.

        Args:
            changes: Changes in tools.
            answer: Changes in the response schema, if any.
            name: Model name.
            notice: Called with new changes.
        """
        if changes is self._told_last and (answer is None or answer in self._told):
            return
        self._told_last = changes
        every = changes if answer is None else (*changes, answer)
        if new := [change for change in every if change not in self._told]:
            if len(self._told) > _KEPT:
                self._told.clear()
            self._told.update(new)
            notice("left_out", f"{name} does not accept some schemas or descriptions unchanged: {', '.join(new)}")

    def loosened(self, tool: VendorTool) -> VendorTool:
        """Return the tool without schema enforcement."""
        return tool._replace(schema=self._schema(tool.definition, strict=False).schema, strict=False)

    def _adapted(self, tools: tuple[ToolDefinition, ...]) -> VendorTools:
        made: list[VendorTool] = []
        originals: dict[str, Original] = {}
        rests: list[str] = []
        notes: list[str] = []
        own_names = {tool.name for tool in tools}
        for tool in tools:
            name = self._dialect.fitting_tool_name(tool.name)
            if name != tool.name and (name in own_names or name in originals):
                name = f"{name[: self._dialect.longest_tool_name - 9]}_{short_hash(tool.name)}"
            adapted = self._schema(tool, strict=tool.strict and self._strict)
            description, rest = self._described(tool.description)
            changes = list(adapted.notes)
            if rest:
                rests.append(_REST.format(name=name, rest=rest))
                changes.append(f"the end of its description, {len(rest):,} characters, is in the system prompt")
            if name != tool.name:
                changes.append(f"its name is sent as {name!r}")
            if name != tool.name or adapted.names:
                originals[name] = Original(tool.name, adapted.schema, adapted.names)
            if changes:
                notes.append(f"the tool {tool.name!r} ({'; '.join(changes)})")
            made.append(VendorTool(name, description, adapted.schema, adapted.strict, tool))
        return VendorTools(tuple(made), originals, "\n\n".join(rests), tuple(notes))

    def _schema(self, tool: ToolDefinition, *, strict: bool) -> Adapted:
        key = id(tool) * 2 + strict
        found = self._kept.get(key)
        if found is None or found[0] is not tool:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[key] = tool, adapt_schema(tool.parameters, self._dialect, strict=strict)
        return found[1]

    def _described(self, text: str) -> tuple[str, str]:
        """Return the description and its remainder, split after a sentence if possible."""
        if self._longest is None or len(text) <= self._longest:
            return text, ""
        room = self._longest - len(_MORE)
        for end in _ENDS:
            place = text.rfind(end, room // 2, room - len(end))
            if place > 0:
                cut = place + len(end)
                break
        else:
            cut = room
        return text[:cut].rstrip() + _MORE, text[cut:].strip()


def _items(schema: Schema) -> list[Schema]:
    items = schema.get("items")
    return [*schema.get("prefixItems", []), *([items] if isinstance(items, dict) else [])]
