"""Tool conversion for vendors, and translation of calls back to the original tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import orjson

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.message_cache import EncodingPaused, encoded_parts
from rxloop.providers.codecs.schemas import AdaptedSchema, adapt_schema
from rxloop.providers.codecs.schemas.dialects import Dialect, short_hash
from rxloop.providers.codecs.schemas.normal_form import MAX_DEPTH, Schema, resolve_reference

_MAX_TOOL_SETS = 4
"""Number of cached tool sets. Several agents may share a model."""

_CACHE_SIZE = 2_000
"""Maximum number of cached schemas and reported changes."""

_MAX_BYTES = 16_000
"""Maximum size of schemas that are converted on the event loop."""

_SENTENCE_ENDS = (". ", ".\n", "\n", " ")

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

    def translate(self, arguments: str) -> str:
        """Translate JSON arguments to original parameter names. Other text is returned unchanged."""
        try:
            parsed: Any = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return arguments
        if not isinstance(parsed, dict):
            return arguments
        return dumps(self._translate(parsed, [self.schema], 0)).decode()

    def _translate(self, value: Any, schemas: Sequence[Schema], depth: int) -> Any:
        nodes = self._collect_schemas(schemas) if depth <= MAX_DEPTH else []
        if isinstance(value, list):
            items = [schema for each in nodes for schema in _list_item_schemas(each)]
            parts = cast("list[Any]", value)
            return [self._translate(each, items, depth + 1) for each in parts] if items else parts
        if not isinstance(value, dict):
            return value
        fields: dict[str, list[Schema]] = {}
        for each in nodes:
            for name, schema in each.get("properties", {}).items():
                fields.setdefault(name, []).append(schema)
        free = [each["additionalProperties"] for each in nodes if isinstance(each.get("additionalProperties"), dict)]
        return {
            (self.names.get(name, name) if name in fields else name): self._translate(
                part, fields.get(name, free), depth + 1
            )
            for name, part in cast("dict[str, Any]", value).items()
        }

    def _collect_schemas(self, schemas: Sequence[Schema]) -> list[Schema]:
        """Return schemas including all referenced and combined ones, without duplicates."""
        collected: list[Schema] = []
        pending = list(schemas)
        seen: set[int] = set()
        while pending:
            schema = pending.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            collected.append(schema)
            for key in ("anyOf", "oneOf", "allOf"):
                pending += schema.get(key, [])
            pending += [schema[key] for key in ("if", "then", "else") if isinstance(schema.get(key), dict)]
            if (reference := schema.get("$ref")) is not None:
                target = resolve_reference(reference, self.schema.get("$defs", {}))
                pending += [] if target is None else [target]
        return collected


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

    def find_vendor_name(self, name: str) -> str:
        """Return the vendor's tool name."""
        return next((tool.name for tool in self.tools if tool.definition.name == name), name)


async def encode_in_parts(encode: Callable[[], bytes]) -> bytes:
    """Encode a request without blocking the event loop for long.

    Other tasks run between the parts of a long conversation. Large schemas of tools are converted in a thread.
    """
    token = encoded_parts.set({})
    try:
        while True:
            try:
                return encode()
            except EncodingPaused as paused:
                prepare = paused.prepare
            if prepare is None:
                await asyncio.sleep(0)
            else:
                # Imported lazily, because most schemas are small.
                from rxloop.support.threads import compute

                await compute(prepare)
    finally:
        encoded_parts.reset(token)


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
        self._max_length = longest_description
        self._schemas: dict[int, tuple[ToolDefinition, AdaptedSchema]] = {}
        self._reported: set[str] = set()
        self._last_changes: tuple[str, ...] = ()
        self._tool_sets: list[tuple[tuple[ToolDefinition, ...], VendorTools]] = [((), VendorTools())]

    def adapt(self, tools: tuple[ToolDefinition, ...]) -> VendorTools:
        """Convert tools, returning the same object if possible."""
        # Equal definitions are usually identical objects, which a tuple comparison detects immediately.
        for cached_tools, adapted in self._tool_sets:
            if cached_tools == tools:
                return adapted
        if encoded_parts.get() is not None and self._is_large(tools):
            raise EncodingPaused(lambda: self._add(tools))
        return self._add(tools)

    def _add(self, tools: tuple[ToolDefinition, ...]) -> VendorTools:
        adapted = self._adapt_all(tools)
        self._tool_sets = [(tools, adapted), *self._tool_sets[: _MAX_TOOL_SETS - 1]]
        return adapted

    def _is_large(self, tools: tuple[ToolDefinition, ...]) -> bool:
        """Return True if the schemas that are not cached are large."""
        size = 0
        for tool in tools:
            cached = self._schemas.get(id(tool) * 2) or self._schemas.get(id(tool) * 2 + 1)
            if cached is None or cached[0] is not tool:
                size += len(dumps(tool.parameters))
                if size > _MAX_BYTES:
                    return True
        return False

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
        if changes is self._last_changes and (answer is None or answer in self._reported):
            return
        self._last_changes = changes
        every = changes if answer is None else (*changes, answer)
        if new := [change for change in every if change not in self._reported]:
            if len(self._reported) > _CACHE_SIZE:
                self._reported.clear()
            self._reported.update(new)
            notice("left_out", f"{name} does not accept some schemas or descriptions unchanged: {', '.join(new)}")

    def make_lenient(self, tool: VendorTool) -> VendorTool:
        """Return the tool without schema enforcement."""
        return tool._replace(schema=self._schema(tool.definition, strict=False).schema, strict=False)

    def _adapt_all(self, tools: tuple[ToolDefinition, ...]) -> VendorTools:
        adapted_tools: list[VendorTool] = []
        originals: dict[str, Original] = {}
        remainders: list[str] = []
        notes: list[str] = []
        own_names = {tool.name for tool in tools}
        for tool in tools:
            name = self._dialect.to_tool_name(tool.name)
            if name != tool.name and (name in own_names or name in originals):
                name = f"{name[: self._dialect.max_tool_name_length - 9]}_{short_hash(tool.name)}"
            adapted = self._schema(tool, strict=tool.strict and self._strict)
            description, remainder = self._split_description(tool.description)
            changes = list(adapted.notes)
            if remainder:
                remainders.append(_REST.format(name=name, rest=remainder))
                changes.append(f"the end of its description, {len(remainder):,} characters, is in the system prompt")
            if name != tool.name:
                changes.append(f"its name is sent as {name!r}")
            if name != tool.name or adapted.names:
                originals[name] = Original(tool.name, adapted.schema, adapted.names)
            if changes:
                notes.append(f"the tool {tool.name!r} ({'; '.join(changes)})")
            adapted_tools.append(VendorTool(name, description, adapted.schema, adapted.strict, tool))
        return VendorTools(tuple(adapted_tools), originals, "\n\n".join(remainders), tuple(notes))

    def _schema(self, tool: ToolDefinition, *, strict: bool) -> AdaptedSchema:
        key = id(tool) * 2 + strict
        cached = self._schemas.get(key)
        if cached is None or cached[0] is not tool:
            if len(self._schemas) >= _CACHE_SIZE:
                self._schemas.clear()
            cached = self._schemas[key] = tool, adapt_schema(tool.parameters, self._dialect, strict=strict)
        return cached[1]

    def _split_description(self, text: str) -> tuple[str, str]:
        """Return the description and its remainder, split after a sentence if possible."""
        if self._max_length is None or len(text) <= self._max_length:
            return text, ""
        limit = self._max_length - len(_MORE)
        for end in _SENTENCE_ENDS:
            position = text.rfind(end, limit // 2, limit - len(end))
            if position > 0:
                length = position + len(end)
                break
        else:
            length = limit
        return text[:length].rstrip() + _MORE, text[length:].strip()


def _list_item_schemas(schema: Schema) -> list[Schema]:
    items = schema.get("items")
    return [*schema.get("prefixItems", []), *([items] if isinstance(items, dict) else [])]
