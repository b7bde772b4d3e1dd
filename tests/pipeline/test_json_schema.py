from __future__ import annotations

import threading
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rxloop.support.json_schema import (
    StepBudget,
    find_mismatch,
    find_mismatch_off_loop,
    find_schema_error,
    validation,
)


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
    ("kind", "value", "message"),
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
def test_mismatch_has_the_path_and_the_reason(kind: Any, value: Any, message: str) -> None:
    # L104
    assert find_mismatch(value, schema(kind)) == message


@pytest.mark.parametrize("value", [0, False, "", None, [], {}])
def test_empty_schema_accepts_every_value(value: Any) -> None:
    # L96
    assert find_mismatch(value, {}) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.sampled_from(["red", "train", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["to", "days", "name"]), inner),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", [int, bool, str | None, list[int], Colour, Place, Trip, dict[str, bool]])
@given(value=values)
def test_find_mismatch_agrees_with_pydantic(kind: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        adapter.validate_json(dump_json(value), strict=True)
    except ValidationError:
        assert find_mismatch(value, schema(kind)) is not None
    else:
        assert find_mismatch(value, schema(kind)) is None


def dump_json(value: Any) -> bytes:
    any_json: TypeAdapter[Any] = TypeAdapter(Any)
    return any_json.dump_json(value)


def test_model_is_validated_as_json() -> None:
    assert find_mismatch(Trip(to=Place(name="Oslo"), days=3), schema(Trip)) is None


@pytest.mark.parametrize(
    ("schema", "value", "message"),
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
def test_schema_of_another_tool_is_supported(schema: dict[str, Any], value: Any, message: str) -> None:  # L106
    assert find_schema_error(schema, None) is None
    assert find_mismatch(value, schema) == message


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
def test_unsupported_keywords_are_ignored(schema: dict[str, Any], value: Any) -> None:
    assert find_mismatch(value, schema) is None


NAMES = [f"d{number}" for number in range(60)]
REFERENCES = {name: {"allOf": [{"$ref": f"#/$defs/{other}"}] * 2} for name, other in pairwise(NAMES)}
BOMB = {"$ref": "#/$defs/d0", "$defs": {**REFERENCES, NAMES[-1]: {}}}
RECURSIVE = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}


def test_hostile_schema_is_rejected_after_a_fixed_number_of_steps() -> None:  # L106
    for hostile in (BOMB, RECURSIVE):
        assert find_schema_error(hostile) is None
        budget = StepBudget(10_000)
        assert "nested too deep or takes too long" in str(find_mismatch({}, hostile, budget))
        assert budget.remaining == 0


MANY = [{"a": number} for number in range(3_000)]
STATES = ".{0,2000}x.{0,2000}y"
PAIRS = {"a": [{"b": number} for number in range(50)]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [*range(30_000)]}}, [29_999] * 20_000),
        ({"items": {"enum": [PAIRS, PAIRS]}}, [PAIRS] * 1_000),
        ({"items": {"const": PAIRS}}, [PAIRS] * 1_000),
        ({"items": {"required": ["a"] * 40_000}}, MANY),
        ({"items": {"$ref": f"#/$defs/{'a' * 150_000}"}, "$defs": {"a" * 150_000: {}}}, [1] * 100_000),
        ({"pattern": STATES}, "ab" * 50_000),
    ],
    ids=["enum", "objects", "const", "required", "ref", "search"],
)
def test_check_of_an_expensive_schema_ends_after_a_fixed_number_of_steps(schema: dict[str, Any], value: Any) -> None:
    # L106
    budget = StepBudget(40_000)
    assert find_schema_error(schema, None) is None
    assert "takes too long" in str(find_mismatch(value, schema, budget))
    assert budget.remaining == 0


def test_rejected_alternatives_are_not_described() -> None:
    properties = {f"p{number}": {} for number in range(9_000)}
    schema = {"items": {"anyOf": [{"additionalProperties": False, "properties": properties}, {}]}}
    assert find_mismatch(MANY, schema, StepBudget(20_000)) is None


def test_number_of_steps_does_not_depend_on_earlier_validations() -> None:
    schema = {"items": {"anyOf": [{"pattern": "^(a|b)*c$"}, {"enum": [{"a": 1}, "x"]}, BOMB | {"type": "null"}]}}
    value = ["abc", "abab", "x", {"a": 1}, "ab" * 400 + "c"]
    used: set[int] = set()
    for _ in range(3):
        budget = StepBudget()
        assert find_mismatch(value, schema, budget) is not None
        used.add(budget.remaining)
    assert len(used) == 1


def test_values_of_a_message_share_its_steps() -> None:
    schema, value = {"items": {"type": "integer"}}, list(range(3_000))
    budget = StepBudget(5_000)
    assert find_mismatch(value, schema, budget) is None
    assert "takes too long" in str(find_mismatch(value, schema, budget))


async def test_long_validation_runs_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    class ObservedCheck(validation.ValueCheck):
        def __init__(self, root: Any, steps: int) -> None:
            super().__init__(root, steps)
            threads.append(threading.current_thread().name)

    monkeypatch.setattr(validation, "ValueCheck", ObservedCheck)
    main = threading.current_thread().name
    schema = {"items": {"type": "integer", "description": "long"}}
    assert await find_mismatch_off_loop([1, 2], schema) is None
    assert threads == [main]
    value = [*range(5_000), "x"]
    expected = "[5000] must be a JSON integer, got 'x'"
    assert await find_mismatch_off_loop(value, schema) == expected
    assert len(threads) == 3
    assert threads[2] != main
    # Later validations only try whether they are short.
    assert find_mismatch(value, schema) == expected
    assert await find_mismatch_off_loop(value, schema) == expected
    assert threads[3:] == [main, main]


def test_result_within_a_small_budget_is_not_reused_for_a_larger_one() -> None:
    schema, value = {"items": {"type": "integer", "title": "small"}}, list(range(5_000))
    assert "takes too long" in str(find_mismatch(value, schema, StepBudget(4_000)))
    assert find_mismatch(value, schema) is None
    assert "takes too long" in str(find_mismatch(value, schema, StepBudget(4_000)))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{}] * 20_000},
        {"properties": {f"p{number}": {} for number in range(20_000)}},
        {"required": ["a"] * 400_000},
        {"pattern": "a" * 5_001},
        {"anyOf": [{"pattern": f"{number}{'a' * 2_000}"} for number in range(20)]},
        {"pattern": "(a{1,1000}){1,1000}"},
        {"properties": {"a": {"items": {"pattern": "(?:(?:){9999}){9999}"}}}},
    ],
    ids=["parts", "properties", "names", "long pattern", "patterns", "repetitions", "empty repetitions"],
)
def test_schema_that_is_too_large_is_invalid(schema: dict[str, Any]) -> None:
    error = str(find_schema_error(schema, None))
    assert "too many parts" in error or "cannot be used: it " in error


def test_schema_error_of_a_deep_schema_with_long_names_is_short() -> None:
    schema: Any = {"type": 5}
    for number in range(50):
        schema = {"properties": {f"{number}{'x' * 5_000}": schema}}
    assert len(str(find_schema_error(schema, None))) < 1_000


def test_complex_pattern_is_searched_in_short_strings() -> None:
    assert find_mismatch("ab" * 500, {"pattern": STATES}) is not None
    assert find_mismatch("axby", {"pattern": STATES}) is None


@pytest.mark.parametrize(
    ("schema", "value", "matches"),
    [
        ({"const": 1}, True, False),
        ({"enum": [False]}, 0, False),
        ({"const": 1}, 1.0, True),
        ({"enum": [[1, {"a": True}]]}, [1, {"a": 1}], False),
        ({"const": {"a": 1, "b": []}}, {"b": [], "a": 1}, True),
        ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}, 2, False),
        ({"$ref": "#/anyOf/0", "anyOf": [{"type": "integer"}, {}]}, "x", False),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer"}}}, "x", False),
    ],
)
def test_values_are_compared_as_json(schema: dict[str, Any], value: Any, matches: bool) -> None:
    assert find_schema_error(schema, None) is None
    assert (find_mismatch(value, schema) is None) is matches


def test_large_values_are_shortened_in_errors() -> None:
    schema = {"anyOf": [{"type": "integer"}, {"enum": [str(number) for number in range(5_000)]}]}
    assert len(str(find_mismatch(["x" * 1_000] * 1_000, schema))) < 400
    assert len(str(find_mismatch({"k" * 100_000: 1}, {"additionalProperties": False}))) < 1_000


def test_chained_references_are_resolved() -> None:  # L106
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}}
    assert find_mismatch("x", schema) == "the value must be a JSON integer, got 'x'"
    assert "too deep" in str(find_mismatch("x", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}))


numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5])
scalars = st.none() | st.booleans() | numbers | st.sampled_from(["", "a", "ab", "b1", "x-y"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def combine_keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "c"])
    sizes = st.integers(0, 3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "enum": st.lists(documents, min_size=1, max_size=3),
            "const": documents,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=3),
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "pattern": st.sampled_from(["a", "^a", "b$", "^[a-b]+$", "^(a|b1)*$", "\\d", "-"]),
            "minimum": numbers,
            "maximum": numbers,
            "exclusiveMinimum": numbers,
            "exclusiveMaximum": numbers,
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), sizes),
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y", "#/$defs/x/items"]),
        },
    )


schemas = st.recursive(st.booleans() | st.just({}), combine_keywords, max_leaves=6)
leaves = combine_keywords(st.booleans()).map(lambda part: {key: part[key] for key in part if key != "$ref"})


@given(schema=schemas, shared=leaves, value=documents)
@settings(max_examples=300, deadline=None)
def test_find_mismatch_agrees_with_jsonschema(schema: Any, shared: dict[str, Any], value: Any) -> None:
    library = pytest.importorskip("jsonschema")
    root = {"allOf": [schema], "$defs": {"x": {"items": shared}, "y": {"properties": {"a": {"$ref": "#/$defs/x"}}}}}
    assert (find_mismatch(value, root) is None) == library.Draft202012Validator(root).is_valid(value)
