from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from rxloop.run.json_schema import misfit


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
        (int, "ten", "the value is to be a JSON integer, not 'ten'"),
        (int, True, "the value is to be a JSON integer, not True"),
        (bool, 1, "the value is to be a JSON boolean, not 1"),
        (int | str, None, "the value is to be a JSON integer or string, not None"),
        (Colour, "green", "the value is to be one of 'red', 'blue', not 'green'"),
        (list[int], [1, "2"], "[1] is to be a JSON integer, not '2'"),
        (dict[str, int], {"a": "b"}, "a is to be a JSON integer, not 'b'"),
        (Annotated[str, Field(min_length=3)], "no", "the length of the value is to be at least 3, not 2"),
        (Trip, {"to": {"name": "Oslo"}}, "the value lacks 'days'"),
        (Trip, {"to": {"name": "Oslo"}, "days": 15}, "days is to be at most 14, not 15"),
        (Trip, {"to": {"name": 1}, "days": 2}, "to.name is to be a JSON string, not 1"),
        (Trip, {"to": {"name": "Oslo"}, "days": 2, "by": "car"}, "by is to be one of 'train', 'boat', not 'car'"),
        (Trip, {"to": {"name": "Oslo"}, "days": 2, "stops": [{}]}, "stops[0] lacks 'name'"),
        (
            Trip,
            {"to": {"name": "Oslo"}, "days": 2, "cost": 3},
            "the value has no 'cost', only 'to', 'days', 'stops', 'by'",
        ),
    ],
)
def test_it_says_what_is_wrong_and_where(kind: Any, value: Any, says: str) -> None:
    # L104
    assert misfit(value, schema(kind)) == says


@pytest.mark.parametrize("value", [0, False, "", None, [], {}])
def test_without_a_schema_everything_fits(value: Any) -> None:
    # L96
    assert misfit(value, {}) is None


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
        assert misfit(value, schema(kind)) is not None
    else:
        assert misfit(value, schema(kind)) is None


def adapter_json(value: Any) -> bytes:
    any_json: TypeAdapter[Any] = TypeAdapter(Any)
    return any_json.dump_json(value)


def test_a_model_is_read_as_the_json_that_it_is() -> None:
    assert misfit(Trip(to=Place(name="Oslo"), days=3), schema(Trip)) is None
