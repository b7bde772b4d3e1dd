"""Definitions of client tools, parsed from JSON."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, cast

import orjson

from rxloop.errors import ConfigurationError
from rxloop.support.json_limits import count_values
from rxloop.support.json_schema import MAX_SCHEMA_STEPS, StepBudget, quote_value
from rxloop.tools.client_tool import ClientTool

MAX_TOOLS = 128
"""Maximum number of tool definitions per run."""

MAX_CHARACTERS = 200_000
"""Maximum JSON length of all definitions, because every model request includes them."""

MAX_VALUES = 10_000
"""Maximum number of JSON values in all definitions, because each value of a schema is converted for the vendor."""

_MAX_PARSED = 32
"""Maximum number of entries in the cache. A list of tools has up to two entries: as sent and as recorded."""

_FIELDS = ("name", "description", "parameters", "result", "strict", "timeout")


class ClientTools(tuple[ClientTool, ...]):
    """Checked client tools of a run, created by `client_tools`."""

    __slots__ = ()


class _ParsedTools:
    """Cache of parsed definitions.

    A process that starts a run parses the recorded definitions again to execute the run, and most clients send the same
    definitions with each run.
    """

    def __init__(self) -> None:
        self._entries = OrderedDict[bytes, tuple[Sequence[Any], ClientTools]]()
        self._lock = Lock()

    def get(self, data: bytes, definitions: Sequence[Any]) -> ClientTools | None:
        """Return the parsed tools, or None if they are not in the cache."""
        with self._lock:
            known, tools = self._entries.get(data, (None, None))
            # NaN and null have the same JSON, but differ as definitions.
            if tools is None or known != definitions:
                return None
            self._entries.move_to_end(data)
            return tools

    def put(self, data: bytes, definitions: Sequence[Any], tools: ClientTools) -> None:
        """Add parsed tools to the cache. If the cache is full, remove the least recently used tools."""
        with self._lock:
            self._entries[data] = definitions, tools
            if len(self._entries) > _MAX_PARSED:
                self._entries.popitem(last=False)


_parsed_tools = _ParsedTools()


def client_tools(definitions: Sequence[ClientTool | Mapping[str, Any]]) -> ClientTools:
    """Create client tools from run definitions.

    Args:
        definitions: Client tools or dicts with `name`, `description` and `parameters`. OpenAI's nested function format
            is also supported.

    Raises:
        ConfigurationError: Invalid definition. The message includes the index.
    """
    if isinstance(definitions, ClientTools):
        return definitions
    if len(definitions) > MAX_TOOLS:
        raise ConfigurationError(f"client_tools must have at most {MAX_TOOLS} definitions, got {len(definitions)}")
    data = _encode(definitions)
    tools = None if data is None else _parsed_tools.get(data, definitions)
    if tools is None:
        tools = _parse_definitions(definitions)
        recorded = [tool.to_definition() for tool in tools]
        _check_size(recorded)
        for known in (definitions, recorded):
            if (data := _encode(known)) is not None:
                _parsed_tools.put(data, known, tools)
    return tools


def _encode(value: object) -> bytes | None:
    """Return a value as JSON, or None if it contains other values, such as client tools and types."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return None


def _parse_definitions(definitions: Sequence[ClientTool | Mapping[str, Any]]) -> ClientTools:
    _check_size(definitions)
    budget = StepBudget(MAX_SCHEMA_STEPS)
    tools: dict[str, ClientTool] = {}
    for index, item in enumerate(definitions):
        try:
            tool = item if isinstance(item, ClientTool) else _parse_definition(item, budget)
        except ConfigurationError as error:
            raise ConfigurationError(f"client_tools[{index}]: {error}") from error
        name = tool.definition.name
        if name in tools:
            raise ConfigurationError(f"client_tools[{index}]: an earlier tool is also named {name!r}")
        tools[name] = tool
    return ClientTools(tools.values())


def _check_size(definitions: Sequence[ClientTool | Mapping[str, Any]]) -> None:
    """Check the size of definitions. Before they are parsed, only the sizes of JSON data are known."""
    encoded = [data for each in definitions if (data := _encode(each)) is not None]
    size, values = sum(map(len, encoded)), sum(count_values(data, MAX_VALUES) for data in encoded)
    if size > MAX_CHARACTERS:
        raise ConfigurationError(f"client_tools must have at most {MAX_CHARACTERS:,} characters as JSON, got {size:,}")
    if values > MAX_VALUES:
        raise ConfigurationError(f"client_tools must have at most {MAX_VALUES:,} JSON values, got {values:,}")


def _parse_definition(definition: Any, budget: StepBudget) -> ClientTool:
    if not isinstance(definition, Mapping):
        raise ConfigurationError(f"a definition must be a dict with name and parameters, got {quote_value(definition)}")
    fields: dict[Any, Any] = dict(cast("Mapping[Any, Any]", definition))
    if "type" in fields and fields.pop("type") != "function":
        raise ConfigurationError(f"type must be 'function', got {quote_value(definition['type'])}")
    if "function" in fields:
        inner = fields.pop("function")
        if fields or not isinstance(inner, Mapping):
            raise ConfigurationError(f"function must be a dict and the only field, got {quote_value(definition)}")
        fields = dict(cast("Mapping[Any, Any]", inner))
    for name in fields:
        if name not in _FIELDS:
            raise ConfigurationError(f"unknown field {name!r}; the fields are: {', '.join(_FIELDS)}")
    if "name" not in fields:
        raise ConfigurationError("name is missing")
    # Clients write null for missing fields.
    options = {name: value for name, value in fields.items() if value is not None}
    # Types are only accepted from the program, because pydantic evaluates strings as names of types.
    if not isinstance(options.get("result", {}), Mapping):
        raise ConfigurationError(f"result must be a JSON Schema, got {quote_value(options['result'])}")
    return ClientTool(options.pop("name", ""), options.pop("parameters", None), **options, _budget=budget)
