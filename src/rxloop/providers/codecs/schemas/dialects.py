"""The JSON Schema support of each vendor, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

_WORDS = frozenset(("title", "description"))

_COMMON = _WORDS | {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref", "$defs"),
    *("format", "minimum", "maximum", "minItems", "maxItems"),
}

_COMBINERS = frozenset(("anyOf", "oneOf", "allOf"))

_CONDITIONS = frozenset(("if", "then", "else", "dependentSchemas"))

MARKS = frozenset(("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "discriminator", "examples"))
"""Keywords that a vendor need not read, since they say nothing about the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictRules:
    """What a schema must be so that a vendor can enforce it."""

    form: Literal["openai", "claude"]
    keywords: frozenset[str] = frozenset()
    """The keywords that it accepts."""
    formats: frozenset[str] = frozenset()
    """The values of `format` that it accepts."""
    properties: int = 0
    """The most properties of all objects together."""
    depth: int = 0
    """The most objects inside each other."""
    enum_values: int = 0
    """The most values of all enums together."""
    characters: int = 0
    """The most characters of all names, enums and constants together."""
    long_enum: tuple[int, int] = (0, 0)
    """An enum with more values than the first number may have as many characters as the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The schemas and names that one vendor accepts."""

    name: str
    root_excludes: frozenset[str]
    """Keywords that must not be at the root of the parameters of a tool."""
    tool_name: re.Pattern[str]
    """What the name of a tool must match."""
    longest_tool_name: int
    property_name: re.Pattern[str]
    """What the name of a parameter must match."""
    answer_names: bool = False
    """The names in the schema of an answer must match `property_name` as well."""
    needs_properties: bool = False
    """Every object must have `properties`."""
    needs_items: bool = False
    """Every array must have `items`."""
    keywords: frozenset[str] | None = None
    """All keywords that are accepted; None accepts any."""
    lone_ref: bool = False
    """Nothing may be beside a `$ref`."""
    plain_enums: bool = False
    """An `enum` has texts or numbers of one type."""
    strict: StrictRules | None = None
    """What it enforces if a request asks for it."""

    def fitting_tool_name(self, name: str) -> str:
        """Return the name by which the vendor knows a tool; the same for each request."""
        if self.tool_name.fullmatch(name):
            return name
        made = re.sub("[^0-9A-Za-z_-]", "_", name) or "unknown"
        if not self.tool_name.match(made):
            made = "_" + made
        if len(made) <= self.longest_tool_name:
            return made
        return f"{made[: self.longest_tool_name - 9]}_{short_hash(name)}"


def short_hash(text: str) -> str:
    """Return eight characters that differ for different texts."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


OPENAI = Dialect(
    name="OpenAI",
    # "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
    root_excludes=_COMBINERS | _CONDITIONS | {"enum", "const", "not", "$ref"},
    tool_name=re.compile("[0-9A-Za-z_-]{1,64}"),
    longest_tool_name=64,
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
"""OpenAI and the endpoints that follow it, in chat completions and in Responses."""

CLAUDE = Dialect(
    name="Claude",
    # "input_schema does not support oneOf, allOf, or anyOf at the top level"
    root_excludes=_COMBINERS | _CONDITIONS | {"enum", "const", "not", "$ref"},
    tool_name=re.compile("[0-9A-Za-z_-]{1,128}"),
    longest_tool_name=128,
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
    longest_tool_name=128,
    property_name=re.compile("[A-Za-z_][0-9A-Za-z_]{0,63}"),
    needs_items=True,
    # Those of `responseJsonSchema`, and those that the type `Schema` of the same API has beside them.
    keywords=_COMMON
    | {"prefixItems", "oneOf", "propertyOrdering", "default", "pattern"}
    | {"minLength", "maxLength", "minProperties", "maxProperties"},
    lone_ref=True,
    plain_enums=True,
)
