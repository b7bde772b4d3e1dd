"""Supported JSON Schema features per vendor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

_TEXT_KEYWORDS = frozenset(("title", "description"))

_COMMON = _TEXT_KEYWORDS | {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref", "$defs"),
    *("format", "minimum", "maximum", "minItems", "maxItems"),
}

_COMBINERS = frozenset(("anyOf", "oneOf", "allOf"))

_CONDITIONS = frozenset(("if", "then", "else", "dependentSchemas"))

IGNORED = frozenset(("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "discriminator", "examples"))
"""Annotations that vendors can ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictRules:
    """Requirements for schema enforcement."""

    form: Literal["openai", "claude"]
    keywords: frozenset[str] = frozenset()
    """Accepted keywords."""
    formats: frozenset[str] = frozenset()
    """Accepted values of `format`."""
    properties: int = 0
    """Maximum total number of properties."""
    depth: int = 0
    """Maximum nesting depth of objects."""
    enum_values: int = 0
    """Maximum total number of enum values."""
    characters: int = 0
    """Maximum total length of names, enum values and constants, in characters."""
    long_enum: tuple[int, int] = (0, 0)
    """Minimum size of a long enum, and its maximum length in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Supported schemas and names."""

    name: str
    root_excludes: frozenset[str]
    """Keywords not supported at the root."""
    tool_name: re.Pattern[str]
    """Pattern of tool names."""
    max_tool_name_length: int
    property_name: re.Pattern[str]
    """Pattern of parameter names."""
    answer_names: bool = False
    """True if names in the schema of an answer must also match `property_name`."""
    needs_properties: bool = False
    """True if every object must have `properties`."""
    needs_items: bool = False
    """True if every array must have `items`."""
    keywords: frozenset[str] | None = None
    """Supported keywords; None means all."""
    requires_lone_ref: bool = False
    """True if a `$ref` must not have siblings."""
    requires_plain_enums: bool = False
    """True if an `enum` must contain only strings, or only numbers of one type."""
    strict: StrictRules | None = None
    """Enforcement rules, if supported."""

    def to_tool_name(self, name: str) -> str:
        """Return a valid tool name, which is always the same for a given tool."""
        if self.tool_name.fullmatch(name):
            return name
        valid = re.sub("[^0-9A-Za-z_-]", "_", name) or "unknown"
        if not self.tool_name.match(valid):
            valid = "_" + valid
        if len(valid) <= self.max_tool_name_length:
            return valid
        return f"{valid[: self.max_tool_name_length - 9]}_{short_hash(name)}"


def short_hash(text: str) -> str:
    """Return a hash of eight characters."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


OPENAI = Dialect(
    name="OpenAI",
    # "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    root_excludes=_COMBINERS | _CONDITIONS | {"enum", "const", "not", "$ref"},
    tool_name=re.compile("[0-9A-Za-z_-]{1,64}"),
    max_tool_name_length=64,
    property_name=re.compile("[0-9A-Za-z_.-]{1,64}"),
    # "object schema missing properties", "array schema missing items"
    needs_properties=True,
    needs_items=True,
    strict=StrictRules(
        form="openai",
        keywords=_COMMON | {"const", "pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
        formats=frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")),
        properties=5_000,
        depth=10,
        enum_values=1_000,
        characters=120_000,
        long_enum=(250, 15_000),
    ),
)
"""OpenAI and compatible endpoints, for chat completions and Responses."""

CLAUDE = Dialect(
    name="Claude",
    # "input_schema does not support oneOf, allOf, or anyOf at the top level"
    root_excludes=_COMBINERS | _CONDITIONS | {"enum", "const", "not", "$ref"},
    tool_name=re.compile("[0-9A-Za-z_-]{1,128}"),
    max_tool_name_length=128,
    # "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    property_name=re.compile("[0-9A-Za-z_.-]{1,64}"),
    answer_names=True,
    strict=StrictRules(form="claude"),
)

GEMINI = Dialect(
    name="Gemini",
    root_excludes=_COMBINERS | _CONDITIONS | {"enum", "const", "not", "$ref"},
    # "Must start with a letter or an underscore."
    tool_name=re.compile("[A-Za-z_][0-9A-Za-z_.:-]{0,127}"),
    max_tool_name_length=128,
    property_name=re.compile("[A-Za-z_][0-9A-Za-z_]{0,63}"),
    needs_items=True,
    # Supported by `responseJsonSchema`, or only by the older `Schema` type.
    keywords=_COMMON
    | {"prefixItems", "oneOf", "propertyOrdering", "default", "pattern"}
    | {"minLength", "maxLength", "minProperties", "maxProperties"},
    requires_lone_ref=True,
    requires_plain_enums=True,
)
