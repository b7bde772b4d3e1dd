"""Tests of strict Anthropic schemas, compared with the vendor's SDK."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from anthropic import transform_schema
from pydantic import BaseModel, Field

from rxloop.providers.codecs.schemas.strict_forms import NotStrict, count_demands, to_claude_form


class Leaf(BaseModel):
    """A leaf."""

    size: int = Field(ge=0, le=9, description="how large")
    kind: Literal["oak", "elm"]
    at: str = Field(pattern="^a", max_length=9)


class Plant(BaseModel):
    name: str
    leaves: list[Leaf] = Field(min_length=1)
    first: Leaf | None
    note: str | int
    when: str = Field(json_schema_extra={"format": "date"})
    odd: str = Field(json_schema_extra={"format": "color"})


class Tree(BaseModel):
    children: list[Tree]


@pytest.mark.parametrize(
    "schema",
    [
        Plant.model_json_schema(),
        Leaf.model_json_schema(),
        {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "null"}]}}},
        {"$ref": "#/$defs/Leaf", "$defs": {"Leaf": {"type": "object", "properties": {}}}},
        {"type": "array", "items": {"const": 5}, "minItems": 3},
        {"enum": [1, "x", None]},
    ],
)
def test_schema_equals_the_transformation_of_the_sdk(schema: dict[str, Any]) -> None:
    assert to_claude_form(schema) == transform_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        Tree.model_json_schema(),
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "properties": {"any": {}}},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"enum": [{"a": 1}]},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}},
        {"type": "object", "properties": {"x": True}},
    ],
)
def test_schema_without_a_strict_equivalent_is_rejected(schema: dict[str, Any]) -> None:
    with pytest.raises(NotStrict):
        to_claude_form(schema)


def test_type_list_becomes_any_of() -> None:
    schema = {"type": ["string", "null"], "format": "date", "description": "when"}
    assert to_claude_form(schema) == {
        "description": "when",
        "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
    }


def test_default_of_null_is_dropped() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": None}}}
    schema_form = to_claude_form(schema)
    assert schema_form is not None
    assert schema_form["properties"]["a"] == {"type": "string"}


def test_optional_properties_and_unions_are_counted() -> None:
    schema_form = to_claude_form(Plant.model_json_schema())
    assert schema_form is not None
    assert count_demands(schema_form) == (0, 2)
    assert count_demands({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}) == (1, 0)
