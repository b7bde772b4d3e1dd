"""What a person types at a question, read as the kind of value that was asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from rxloop import PendingInput
from rxloop.cli.live_run import example, read_answer
from rxloop.errors import ConfigurationError


class Room(BaseModel):
    guests: Annotated[int, Field(ge=1)]
    name: str
    kind: Literal["single", "double"]
    extras: list[str] = []


class Node(BaseModel):
    children: list[Node]


def asked(answer: Any) -> PendingInput:
    return PendingInput(input_id="q", prompt="Well?", answer_schema=TypeAdapter(answer).json_schema())


@pytest.mark.parametrize(
    ("answer", "given_", "value"),
    [
        (int, "5", 5),
        (float, "5", 5),
        (str | int, "Ann", "Ann"),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Annotated[str, Field(min_length=2)], "Ann", "Ann"),
        # Digits where a text is wanted.
        (Annotated[str, Field(min_length=2)], "12", "12"),
        (Literal["a", "b"], "b", "b"),
        (int | None, "null", None),
        (Room, '{"guests": 2, "name": "Ann", "kind": "double"}', {"guests": 2, "name": "Ann", "kind": "double"}),
    ],
)
def test_what_fits_is_taken(answer: Any, given_: str, value: Any) -> None:
    assert read_answer(given_, asked(answer)) == value


@pytest.mark.parametrize(
    ("answer", "given_", "said"),
    [
        (int, "five", "'five' is not JSON; type something like 1"),
        (int, "5.5", "the value must be a JSON integer, got 5.5; type something like 1"),
        (int, '"5"', "the value must be a JSON integer, got '5'"),
        (int, "true", "the value must be a JSON integer, got True"),
        (int, "", "type something like 1"),
        (Annotated[int, Field(ge=1, le=5)], "9", "the value must be at most 5, got 9"),
        (list[int], '[1, "x"]', "[1] must be a JSON integer, got 'x'; type something like [1]"),
        (dict[str, int], "{", "'{' is not JSON; type something like {}"),
        (Literal["a", "b"], "c", "'c' is not JSON; type something like \"a\""),
        (
            Room,
            '{"guests": 2}',
            """the value must have 'name'; type something like {"guests":1,"name":"...","kind":"single"}""",
        ),
        (Room, '{"guests": 0, "name": "A", "kind": "single"}', "guests must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_said_with_something_that_would(answer: Any, given_: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_answer(given_, asked(answer))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    "answer",
    [int, float, str, bool, list[int], dict[str, int], int | None, Room, Literal["a"], Annotated[int, Field(ge=7)]],
)
def test_the_example_is_an_answer(answer: Any) -> None:
    value = read_answer(example(asked(answer)), asked(answer))
    TypeAdapter(answer).validate_python(value)


def test_a_type_that_holds_itself_has_an_example() -> None:
    assert example(asked(Node)).startswith('{"children":[')


@given(st.text())
def test_whatever_is_typed_is_read_or_refused(typed: str) -> None:
    for answer in (int, Room, list[int], str | int):
        with suppress(ConfigurationError):
            orjson.dumps(read_answer(typed, asked(answer)))


@pytest.mark.parametrize("typed", ["²", "0", "4", "d"])
def test_what_is_none_of_the_options_is_refused(typed: str) -> None:
    pending = PendingInput(input_id="q", prompt="Well?", input_kind="selection", options=["a", "b", "c"])
    assert read_answer("2", pending) == "b"
    with pytest.raises(ConfigurationError, match="is not one of them"):
        read_answer(typed, pending)


@given(st.text(), st.sampled_from(["selection", "confirmation", "text"]))
def test_no_other_kind_of_question_breaks_either(typed: str, kind: Any) -> None:
    options = ["a", 2, None] if kind == "selection" else None
    pending = PendingInput(input_id="q", prompt="Well?", input_kind=kind, options=options)
    with suppress(ConfigurationError):
        read_answer(typed, pending)
