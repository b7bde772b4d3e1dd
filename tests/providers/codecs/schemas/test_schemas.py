from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from rxloop.providers.codecs.schemas import adapt_schema, make_response_format
from rxloop.providers.codecs.schemas.dialects import OPENAI


class Colour(Enum):
    RED = "red"


class Street(BaseModel):
    """A street."""

    name: str


class City(BaseModel):
    name: str = Field(description="As its people write it.")
    kind: Literal["town", "city"]
    colours: list[Colour]
    main: Street = Field(description="The longest one.")
    streets: list[Street]
    founded: date | None = None
    size: int = Field(ge=0)


class Node(BaseModel):
    value: int
    next: Node | None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Sized(BaseModel):
    name: str = "Oslo"


class Made(BaseModel):
    names: list[str] = Field(default_factory=list)


class Free(BaseModel):
    counts: dict[str, int]


class Short(BaseModel):
    name: str = Field(min_length=1)


class Nullable(BaseModel):
    name: str | None = None


def make_schema(of: Any) -> dict[str, Any]:
    return TypeAdapter(of).json_schema()


def make_strict(given: dict[str, Any]) -> dict[str, Any] | None:
    adapted = adapt_schema(given, OPENAI, strict=True, use="answer")
    return adapted.schema if adapted.strict else None


def make_format(given: dict[str, Any], *, can_be_strict: bool) -> dict[str, Any]:
    return make_response_format(given, OPENAI, can_be_strict)[0]


def find_objects(node: Any) -> list[dict[str, Any]]:
    """Return all object schemas within a schema."""
    if isinstance(node, list):
        return [each for part in node for each in find_objects(part)]
    if not isinstance(node, dict):
        return []
    inner = [each for part in node.values() for each in find_objects(part)]
    return [node, *inner] if node.get("type") == "object" else inner


def test_objects_are_closed_and_required_where_equivalent() -> None:
    strict = make_strict(make_schema(City))
    assert strict is not None
    found = find_objects(strict)
    # The described street replaces its reference.
    assert len(found) == 3
    for each in found:
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
    assert strict["properties"]["streets"]["items"] == {"$ref": "#/$defs/Street"}
    assert strict["properties"]["main"]["description"] == "The longest one."
    assert strict["properties"]["main"]["properties"] == {"name": {"title": "Name", "type": "string"}}
    assert "default" not in strict["properties"]["founded"]
    assert {"type": "null"} in strict["properties"]["founded"]["anyOf"]
    assert strict["properties"]["size"]["minimum"] == 0


def test_schema_is_not_changed_in_place() -> None:
    given = make_schema(City)
    make_strict(given)
    assert given == make_schema(City)


@pytest.mark.parametrize("of", [Open, Sized, Made, Free, Short])
def test_schema_with_another_meaning_is_not_strict(of: Any) -> None:
    assert make_strict(make_schema(of)) is None
    asked = make_format(make_schema(of), can_be_strict=True)["json_schema"]
    assert (asked["strict"], asked["schema"]) == (False, make_schema(of))


def test_optional_field_that_may_be_null_is_required() -> None:
    strict = make_strict(make_schema(Nullable))
    assert strict is not None
    assert strict["required"] == ["name"]


def test_response_format_names_the_type_and_is_strict_where_supported() -> None:
    assert make_format(make_schema(City), can_be_strict=True) == {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": make_strict(make_schema(City)), "strict": True},
    }
    assert make_format(make_schema(City), can_be_strict=False) == {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": make_schema(City)},
    }


@pytest.mark.parametrize(
    ("title", "name"), [("City[int]", "City_int"), ("", "answer"), ("Ørn", "rn"), ("x" * 99, "x" * 64)]
)
def test_format_name_is_valid_for_vendors(title: str, name: str) -> None:
    assert make_format({"type": "object", "title": title}, can_be_strict=False)["json_schema"]["name"] == name
