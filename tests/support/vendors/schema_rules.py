"""Tool and answer schemas that vendors reject with status 400, with sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
from jsonschema import Draft202012Validator

Json = dict[str, Any]
_NAMED = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
STRICT_KEYWORDS = {
    *("type", "title", "description", "properties", "required", "additionalProperties", "items", "anyOf", "enum"),
    *("const", "$ref", "$defs", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minItems", "maxItems"),
}
GEMINI_KEYWORDS = {
    *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"),
    # Keywords of the type `Schema` in the same API.
    *("required", "propertyOrdering", "default", "pattern", "minLength", "maxLength", "minProperties", "maxProperties"),
}


def iterate_schemas(schema: Json) -> Iterator[Json]:
    """Iterate over a schema and its subschemas."""
    yield schema
    inner: list[Any] = []
    for key in _NAMED:
        inner += schema.get(key, {}).values()
    for key in _SEVERAL:
        inner += schema.get(key, [])
    inner += [schema[key] for key in _ONE if key in schema]
    for part in inner:
        if isinstance(part, dict):
            yield from iterate_schemas(part)


def property_names(schema: Any) -> set[str]:
    """List property names, including those in malformed schemas."""
    if isinstance(schema, list):
        return {name for part in schema for name in property_names(part)}
    if not isinstance(schema, dict):
        return set()
    properties = schema.get("properties")
    names = set(properties) if isinstance(properties, dict) else set()
    for key in (*_NAMED, "definitions"):
        if isinstance(named := schema.get(key), dict):
            names |= {name for part in named.values() for name in property_names(part)}
    return names.union(*(property_names(schema.get(key)) for key in (*_SEVERAL, *_ONE)))


def _check_json_schema(schema: Json) -> None:
    # "JSON schema is invalid. It must match JSON Schema draft 2020-12"
    Draft202012Validator.check_schema(schema)
    for part in iterate_schemas(schema):
        # OpenAI: "'(?<!x' is not a 'regex'"
        re.compile(part.get("pattern", ""))
        # OpenAI: "[...] has non-unique elements", "[] should be non-empty"
        if "enum" in part:
            assert part["enum"]
            assert len({repr(value) for value in part["enum"]}) == len(part["enum"])
        if "$ref" in part:
            # OpenAI: "Pointer '/definitions/X' does not exist"
            name = part["$ref"].removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
            assert name in schema["$defs"], part["$ref"]
        # Gemini: "required[0]: property is not defined"
        if part.get("type") == "object" and not part.keys() & {"anyOf", "oneOf", "allOf", "if"}:
            assert set(part.get("required", ())) <= part.get("properties", {}).keys()


def _check_root(schema: Json) -> None:
    # OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    # Claude: "input_schema does not support oneOf, allOf, or anyOf at the top level"
    assert schema["type"] == "object"
    assert not schema.keys() & {"oneOf", "anyOf", "allOf", "enum", "not", "const", "$ref", "if", "then", "else"}


def _check_names(schema: Json, pattern: str) -> None:
    # Claude: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    for part in iterate_schemas(schema):
        for name in part.get("properties", {}):
            assert re.fullmatch(pattern, name), name


def check_openai_schema(schema: Json, *, strict: bool) -> None:
    """platform.openai.com/docs/guides/structured-outputs, and the errors of function calling without strict."""
    _check_json_schema(schema)
    for part in iterate_schemas(schema):
        kinds = part.get("type", ())
        if "array" in kinds:
            # "array schema missing items"
            assert "items" in part
        if "object" in kinds:
            # "object schema missing properties"
            assert "properties" in part or "additionalProperties" in part
        if not strict:
            continue
        # "In context=(...), 'oneOf' is not permitted"
        assert part.keys() <= STRICT_KEYWORDS, part.keys() - STRICT_KEYWORDS
        # "schema must have a 'type' key"
        assert part.keys() & {"type", "anyOf", "$ref"}, part
        # "$ref cannot have keywords {'description'}"
        assert "$ref" not in part or part.keys() <= {"$ref", "$defs"}
        # "look-around is not supported in patterns"
        assert not re.search(r"\(\?(?:[=!]|<[=!])", part.get("pattern", ""))
        if kinds == "object":
            # "'additionalProperties' is required to be supplied and to be false"
            assert part["additionalProperties"] is False
            # "'required' is required to be supplied and to be an array including every key in properties"
            assert set(part["required"]) == part["properties"].keys()
    if strict:
        assert sum(len(part.get("properties", {})) for part in iterate_schemas(schema)) <= 5_000
        assert sum(len(part.get("enum", [])) for part in iterate_schemas(schema)) <= 1_000


def check_openai_tool(tool: Json) -> None:
    """Check a function of chat completions or Responses."""
    # "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'", "maximum length 64"
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool["name"])
    # "string too long. Expected a string with maximum length 1024"
    assert len(tool["description"]) <= 1024
    _check_root(tool["parameters"])
    _check_names(tool["parameters"], "[a-zA-Z0-9_.-]{1,64}")
    check_openai_schema(tool["parameters"], strict=bool(tool.get("strict")))


def check_claude_tool(tool: Json) -> None:
    """docs.anthropic.com/en/docs/build-with-claude/structured-outputs, and the errors of tools without strict."""
    assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", tool["name"])
    schema = tool["input_schema"]
    _check_root(schema)
    _check_json_schema(schema)
    _check_names(schema, "[a-zA-Z0-9_.-]{1,64}")
    if tool.get("strict"):
        check_claude_strict(schema)


def check_claude_strict(schema: Json) -> None:
    _check_json_schema(schema)
    for part in iterate_schemas(schema):
        if part.get("type") == "object":
            # "For 'object' type, 'additionalProperties' must be explicitly set to false"
            assert part["additionalProperties"] is False
        # "For 'string' type, properties minLength, maxLength are not supported", and the like
        unknown = {"oneOf", "minLength", "maxLength", "minimum", "maximum", "multipleOf", "uniqueItems", "prefixItems"}
        assert not part.keys() & {*unknown, "patternProperties", "pattern", "not", "if", "exclusiveMinimum"}
        assert part.get("minItems", 0) in (0, 1)


def check_gemini_tool(declaration: Json) -> None:
    """ai.google.dev/api/caching#FunctionDeclaration."""
    # "Must start with a letter or an underscore"
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}", declaration["name"])
    schema = declaration["parametersJsonSchema"]
    _check_root(schema)
    _check_names(schema, "[a-zA-Z_][a-zA-Z0-9_]{0,63}")
    check_gemini_schema(schema)


def check_gemini_schema(schema: Json) -> None:
    """ai.google.dev/api/generate-content#GenerationConfig, on `responseJsonSchema`."""
    _check_json_schema(schema)
    orjson.dumps(schema)
    for part in iterate_schemas(schema):
        assert part.keys() <= GEMINI_KEYWORDS, part.keys() - GEMINI_KEYWORDS
        # "If `$ref` is set on a sub-schema, no other properties, except for those starting as a `$`, may be set."
        assert "$ref" not in part or all(name.startswith("$") for name in part)
        if "array" in part.get("type", ()):
            # "items: missing field"
            assert "items" in part
        if "enum" in part:
            # "`enum` (for strings and numbers)"
            kinds = {bool if isinstance(value, bool) else type(value) for value in part["enum"]}
            assert kinds <= {str} or kinds <= {int} or kinds <= {float} or kinds <= {int, float}
