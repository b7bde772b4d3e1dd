"""Schemas that Claude can be held to, against what the vendor's SDK makes of the same ones."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from anthropic import transform_schema
from pydantic import BaseModel, Field

from rxloop.providers.codecs.schemas.strict_forms import NotStrict, claude_form, demands


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
def test_a_schema_is_what_the_sdk_makes_of_it(schema: dict[str, Any]) -> None:
    assert claude_form(schema) == transform_schema(schema)


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
def test_one_that_would_mean_something_else_has_no_form(schema: dict[str, Any]) -> None:
    with pytest.raises(NotStrict):
        claude_form(schema)


def test_several_types_become_variants() -> None:
    schema = {"type": ["string", "null"], "format": "date", "description": "when"}
    assert claude_form(schema) == {
        "description": "when",
        "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
    }


def test_a_default_of_null_says_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": None}}}
    made = claude_form(schema)
    assert made is not None
    assert made["properties"]["a"] == {"type": "string"}


def test_what_the_vendor_takes_only_so_much_of_is_counted() -> None:
    made = claude_form(Plant.model_json_schema())
    assert made is not None
    assert demands(made) == (0, 2)
    assert demands({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}) == (1, 0)
