"""Parsing of answers typed on the terminal."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from rxloop import PendingInput
from rxloop.cli.questions import make_example, parse_answer
from rxloop.errors import ConfigurationError
from rxloop.support.json_schema import find_schema_error


class Room(BaseModel):
    guests: Annotated[int, Field(ge=1)]
    name: str
    kind: Literal["single", "double"]
    extras: list[str] = []


class Node(BaseModel):
    children: list[Node]


def ask(answer: Any) -> PendingInput:
    return PendingInput(input_id="q", prompt="Well?", answer_schema=TypeAdapter(answer).json_schema())


@pytest.mark.parametrize(
    ("answer", "text", "value"),
    [
        (int, "5", 5),
        (float, "5", 5),
        (str | int, "Ann", "Ann"),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Annotated[str, Field(min_length=2)], "Ann", "Ann"),
        # Digits are valid strings.
        (Annotated[str, Field(min_length=2)], "12", "12"),
        (Literal["a", "b"], "b", "b"),
        (int | None, "null", None),
        (Room, '{"guests": 2, "name": "Ann", "kind": "double"}', {"guests": 2, "name": "Ann", "kind": "double"}),
    ],
)
def test_valid_answer_is_parsed(answer: Any, text: str, value: Any) -> None:
    assert parse_answer(text, ask(answer)) == value


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        (int, "five", "'five' is not JSON; example: 1"),
        (int, "5.5", "the value must be a JSON integer, got 5.5; example: 1"),
        (int, '"5"', "the value must be a JSON integer, got '5'"),
        (int, "true", "the value must be a JSON integer, got True"),
        (int, "", "example: 1"),
        (Annotated[int, Field(ge=1, le=5)], "9", "the value must be at most 5, got 9"),
        (list[int], '[1, "x"]', "[1] must be a JSON integer, got 'x'; example: [1]"),
        (dict[str, int], "{", "'{' is not JSON; example: {}"),
        (Literal["a", "b"], "c", "'c' is not JSON; example: \"a\""),
        (
            Room,
            '{"guests": 2}',
            """the value must have 'name'; example: {"guests":1,"name":"...","kind":"single"}""",
        ),
        (Room, '{"guests": 0, "name": "A", "kind": "single"}', "guests must be at least 1, got 0"),
    ],
)
def test_invalid_answer_raises_an_error_with_an_example(answer: Any, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_answer(text, ask(answer))
    assert str(error.value).startswith(expected)


@pytest.mark.parametrize(
    "answer",
    [int, float, str, bool, list[int], dict[str, int], int | None, Room, Literal["a"], Annotated[int, Field(ge=7)]],
)
def test_example_answer_is_valid(answer: Any) -> None:
    value = parse_answer(make_example(ask(answer)), ask(answer))
    TypeAdapter(answer).validate_python(value)


def test_recursive_type_has_an_example() -> None:
    assert make_example(ask(Node)).startswith('{"children":[')


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": ["string", "null"]}, '"..."'),
        ({"type": "object", "properties": {"a": True}, "required": ["a"]}, '{"a":"..."}'),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}}, '"..."'),
        ({"$ref": "#/definitions/A", "definitions": {"A": {"type": "integer", "minimum": 3}}}, "3"),
    ],
)
def test_any_valid_schema_has_an_example(schema: dict[str, Any], example: str) -> None:
    assert find_schema_error(schema, None) is None
    assert make_example(PendingInput(input_id="q", prompt="?", input_kind="data", answer_schema=schema)) == example


@given(st.text())
def test_parse_answer_returns_or_raises_a_configuration_error_for_any_text(typed: str) -> None:
    for answer in (int, Room, list[int], str | int):
        with suppress(ConfigurationError):
            orjson.dumps(parse_answer(typed, ask(answer)))


@pytest.mark.parametrize("typed", ["²", "0", "4", "d", pytest.param("1" * 5_000, id="long")])
def test_answer_that_is_not_an_option_is_rejected(typed: str) -> None:
    pending = PendingInput(input_id="q", prompt="Well?", input_kind="selection", options=["a", "b", "c"])
    assert parse_answer("2", pending) == "b"
    with pytest.raises(ConfigurationError, match="is not an option"):
        parse_answer(typed, pending)


@given(st.text(), st.sampled_from(["selection", "confirmation", "text"]))
def test_parse_answer_handles_every_other_question_kind(typed: str, kind: Any) -> None:
    options = ["a", 2, None] if kind == "selection" else None
    pending = PendingInput(input_id="q", prompt="Well?", input_kind=kind, options=options)
    with suppress(ConfigurationError):
        parse_answer(typed, pending)
