from __future__ import annotations

from enum import Enum
from itertools import pairwise
from time import thread_time
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rxloop.support.json_schema import find_mismatch, find_schema_error


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    name: str
    height: float | None = None


class Trip(BaseModel, extra="forbid"):
    to: Place
    days: Annotated[int, Field(ge=1, le=14)]
    stops: list[Place] = []
    by: Literal["train", "boat"] = "train"


def schema(kind: Any) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (int, "ten", "the value must be a JSON integer, got 'ten'"),
        (int, True, "the value must be a JSON integer, got True"),
        (bool, 1, "the value must be a JSON boolean, got 1"),
        (int | str, None, "the value must be a JSON integer or string, got None"),
        (Colour, "green", "the value must be one of 'red', 'blue', got 'green'"),
        (list[int], [1, "2"], "[1] must be a JSON integer, got '2'"),
        (dict[str, int], {"a": "b"}, "a must be a JSON integer, got 'b'"),
        (Annotated[str, Field(min_length=3)], "no", "the length of the value must be at least 3, got 2"),
        (Trip, {"to": {"name": "Oslo"}}, "the value must have 'days'"),
        (Trip, {"to": {"name": "Oslo"}, "days": 15}, "days must be at most 14, got 15"),
        (Trip, {"to": {"name": 1}, "days": 2}, "to.name must be a JSON string, got 1"),
        (Trip, {"to": {"name": "Oslo"}, "days": 2, "by": "car"}, "by must be one of 'train', 'boat', got 'car'"),
        (Trip, {"to": {"name": "Oslo"}, "days": 2, "stops": [{}]}, "stops[0] must have 'name'"),
        (
            Trip,
            {"to": {"name": "Oslo"}, "days": 2, "cost": 3},
            "the value must not have 'cost', only 'to', 'days', 'stops', 'by'",
        ),
    ],
)
def test_it_says_what_is_wrong_and_where(kind: Any, value: Any, says: str) -> None:
    # L104
    assert find_mismatch(value, schema(kind)) == says


@pytest.mark.parametrize("value", [0, False, "", None, [], {}])
def test_without_a_schema_everything_fits(value: Any) -> None:
    # L96
    assert find_mismatch(value, {}) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.sampled_from(["red", "train", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["to", "days", "name"]), inner),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", [int, bool, str | None, list[int], Colour, Place, Trip, dict[str, bool]])
@given(value=values)
def test_it_agrees_with_pydantic_about_json(kind: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        adapter.validate_json(adapter_json(value), strict=True)
    except ValidationError:
        assert find_mismatch(value, schema(kind)) is not None
    else:
        assert find_mismatch(value, schema(kind)) is None


def adapter_json(value: Any) -> bytes:
    any_json: TypeAdapter[Any] = TypeAdapter(Any)
    return any_json.dump_json(value)


def test_a_model_is_read_as_the_json_that_it_is() -> None:
    assert find_mismatch(Trip(to=Place(name="Oslo"), days=3), schema(Trip)) is None


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        ({"pattern": "^[a-z]+$"}, "Oslo", "the value must match '^[a-z]+$', got 'Oslo'"),
        ({"minItems": 2}, [1], "the length of the value must be at least 2, got 1"),
        ({"maxItems": 1}, [1, 2], "the length of the value must be at most 1, got 2"),
        ({"exclusiveMinimum": 0}, 0, "the value must be greater than 0, got 0"),
        ({"exclusiveMaximum": 2.5}, 3, "the value must be less than 2.5, got 3"),
        ({"properties": {"x": False}}, {"x": 1}, "x must not be set"),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, {}, "the value must have 'a'"),
        ({"anyOf": [{}, False], "type": "object"}, 5, "the value must be a JSON object, got 5"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, 5, "the value must be a JSON null, got 5"),
    ],
)
def test_what_others_write_is_understood(schema: dict[str, Any], value: Any, says: str) -> None:  # L106
    assert find_schema_error(schema, None) is None
    assert find_mismatch(value, schema) == says


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minimum": 3, "exclusiveMinimum": True}, 3),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1]),
        ({"items": [{"type": "string"}]}, [1]),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"x-a": 1}),
        ({"pattern": "(?=x)"}, "y"),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "a"}),
        ({"format": "date", "if": {}, "not": {"type": "string"}}, "soon"),
    ],
)
def test_what_is_not_looked_at_is_taken_as_kept(schema: dict[str, Any], value: Any) -> None:
    assert find_mismatch(value, schema) is None


def test_a_schema_of_a_stranger_cannot_hold_up_the_process() -> None:  # L106
    names = [f"d{number}" for number in range(60)]
    refers = {name: {"allOf": [{"$ref": f"#/$defs/{other}"}] * 2} for name, other in pairwise(names)}
    bomb = {"$ref": "#/$defs/d0", "$defs": {**refers, names[-1]: {}}}
    itself = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}
    backtracks = {"pattern": "^(a+)+$"}
    for schema in (bomb, itself, backtracks):
        assert find_schema_error(schema) is None
    begun = thread_time()
    assert "takes too long" in str(find_mismatch({}, bomb))
    assert "too deep" in str(find_mismatch({}, itself))
    assert find_mismatch("a" * 100_000 + "!", backtracks) is not None
    assert thread_time() - begun < 5


MANY = [{"a": number} for number in range(3_000)]
STATES = ".{0,2000}x.{0,2000}y"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [*range(30_000)]}}, [29_999] * 20_000),
        ({"items": {"required": ["a"] * 40_000}}, MANY),
        ({"items": {"$ref": f"#/$defs/{'a' * 150_000}"}, "$defs": {"a" * 150_000: {}}}, [1] * 100_000),
        (
            {
                "items": {
                    "anyOf": [{"additionalProperties": False, "properties": {f"p{n}": {} for n in range(9_000)}}, {}]
                }
            },
            MANY,
        ),
        ({"anyOf": [{"pattern": f"(\\w{{60}}){{3}}{number}"} for number in range(100)]}, "x"),
        ({"pattern": STATES}, "ab" * 50_000),
    ],
    ids=["enum", "required", "ref", "properties", "compile", "search"],
)
def test_a_check_ends_in_time_whatever_a_schema_asks_for(  # L106
    schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxloop.support.json_schema._MAX_SECONDS", 0.2)
    assert find_schema_error(schema, None) is None
    begun = thread_time()
    assert "takes too long" in str(find_mismatch(value, schema))
    assert thread_time() - begun < 1


def test_a_pattern_of_many_states_is_looked_for_in_what_is_short() -> None:
    assert find_mismatch("ab" * 500, {"pattern": STATES}) is not None
    assert find_mismatch("axby", {"pattern": STATES}) is None


def test_references_are_followed_to_their_end() -> None:  # L106
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}}
    assert find_mismatch("x", schema) == "the value must be a JSON integer, got 'x'"
    assert "too deep" in str(find_mismatch("x", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}))


def test_it_agrees_with_jsonschema_about_what_it_looks_at() -> None:
    library = pytest.importorskip("jsonschema")
    shapes: list[dict[str, Any]] = [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
        {"type": ["string", "null"], "pattern": "^o"},
        {"type": "array", "items": {"enum": ["x", 1, None]}, "minItems": 1},
        {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 2}]},
        {"type": "object", "additionalProperties": {"type": "boolean"}},
        {"$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
    ]
    some: list[Any] = [None, 0, -1, "", "oslo", [], ["x"], [2], [1, 2, 3], {}, {"a": 1}, {"a": -1}, {"a": True}]
    some += [{"next": {"next": {}}}, {"next": {"next": 5}}, {"a": "b"}]
    for schema in shapes:
        validator = library.Draft202012Validator(schema)
        for value in some:
            assert (find_mismatch(value, schema) is None) == validator.is_valid(value), (schema, value)
