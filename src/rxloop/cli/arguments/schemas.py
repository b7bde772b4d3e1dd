"""Answer schemas for the option `--schema`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from rxloop.errors import ConfigurationError
from rxloop.support.json_schema import TYPES, find_mismatch

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_FIELD = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\s+(?P<type>\w+)(?P<many>\[\])?)?\s*(?::\s*(?P<description>.+))?")
_EXAMPLE = "'name, age int, tags str[], summary: one sentence'"


def load_schema(text: str) -> dict[str, Any]:
    """Parse the value of `--schema`.

    Args:
        text: JSON object, path of a JSON file, or fields separated by commas or lines.

    Raises:
        ConfigurationError: The text is none of these, or the file cannot be read.
    """
    if text.lstrip().startswith("{"):
        return _parse_schema(text, "--schema")
    path = Path(text)
    if path.suffix == ".json" or ("\n" not in text and _is_file(path)):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"--schema: cannot read {text!r}: {error.strerror or error}") from error
        return _parse_schema(content, f"--schema {text}")
    return _parse_fields(text)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # Some systems reject paths with the length of a field list.
        return False


def _parse_schema(text: str | bytes, source: str) -> dict[str, Any]:
    try:
        schema: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{source} is not JSON: {error}; correct it, or list fields: {_EXAMPLE}") from None
    if not isinstance(schema, dict):
        raise ConfigurationError(f"{source} must be a JSON Schema object, got {type(schema).__name__}")
    fields = cast("dict[str, Any]", schema)
    kind = fields.get("type")
    if not fields.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        raise ConfigurationError(f'{source} must have a "type", such as {{"type": "object", "properties": {{...}}}}')
    if isinstance(kind, str) and kind not in TYPES:
        raise ConfigurationError(f"{source}: the type must be one of {', '.join(TYPES)}, got {kind!r}")
    return fields


def _parse_fields(text: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split("\n" if "\n" in text else ","))):
        found = _FIELD.fullmatch(part)
        kind = (found["type"] or "str") if found is not None else ""
        if found is None or kind not in _TYPES:
            raise ConfigurationError(
                f"--schema: invalid field {part!r}; expected a JSON file, a JSON Schema, or fields with the types "
                f"{', '.join(_TYPES)}, such as {_EXAMPLE}"
            )
        if found["name"] in properties:
            raise ConfigurationError(
                f"--schema: the field {found['name']!r} is listed twice; rename or omit one of them"
            )
        schema: dict[str, Any] = {"type": _TYPES[kind]}
        if found["many"]:
            schema = {"type": "array", "items": schema}
        if found["description"]:
            schema["description"] = found["description"]
        properties[found["name"]] = schema
    if not properties:
        raise ConfigurationError(f"--schema must not be empty; list fields, such as {_EXAMPLE}")
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def make_output_type(schema: Mapping[str, Any]) -> type[Any]:
    """Return a type for `Agent(output_type=...)` whose values match the schema."""

    class Answer:
        """Answer matching the schema."""

        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
            return core_schema.no_info_plain_validator_function(check)

        @classmethod
        def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
            return dict(schema)

    def check(value: Any) -> Any:
        mismatch = find_mismatch(value, schema)
        if mismatch is not None:
            raise ValueError(mismatch)
        return value

    return Answer
