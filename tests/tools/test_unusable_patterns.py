"""Types with regular expressions that pydantic does not support."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from rxloop import Agent, client_tool, tool
from rxloop.errors import ConfigurationError
from rxloop.pipeline.ask import make_question
from rxloop.testing import ScriptedModel, call

LOOK_AROUND = Annotated[str, Field(pattern="^(?!0)[0-9]+$")]
BROKEN = Annotated[str, Field(pattern="(")]


# P28
@pytest.mark.parametrize(("kind", "why"), [(LOOK_AROUND, "look-around"), (BROKEN, "unclosed group")])
def test_unsupported_pattern_is_reported_when_its_type_is_used(kind: Any, why: str) -> None:
    def order(count: Any) -> str:
        return count

    order.__annotations__["count"] = kind

    def define() -> None:
        tool(order)

    def answer() -> None:
        Agent(ScriptedModel("x"), output_type=kind)

    def answers() -> None:
        Agent(ScriptedModel("x"), output_type=list[kind], output_mode="tool")

    def result() -> None:
        client_tool("order", result=kind)

    def ask() -> None:
        make_question("How many?", kind, None)

    for make in (define, answer, answers, result, ask):
        with pytest.raises(ConfigurationError, match=why) as raised:
            make()
        assert "the pattern" in str(raised.value)


# P3
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": None},
        {"type": "object", "properties": None},
        {"type": ["object", "null"], "properties": {"a": None}},
        {"anyOf": None, "properties": {"a": {"enum": None, "allOf": None, "items": None}}},
    ],
)
async def test_null_values_in_a_schema_are_treated_as_missing(parameters: dict[str, Any]) -> None:
    show = client_tool("show", parameters)
    model = ScriptedModel([call("show", a="x")], "done")
    result = await Agent(model, tools=[show]).run("?")
    assert [pending.call.arguments for pending in result.pending if pending.call] == [{"a": "x"}]


@pytest.mark.parametrize("kind", [5, "array", ["array", "null"], {}])
def test_parameters_that_are_not_an_object_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="its type must be 'object'"):
        client_tool("show", {"type": kind})


# P3
async def test_recursive_answer_type_is_requested_by_its_schema() -> None:
    class Tree(BaseModel):
        children: list[Tree]

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    model = ScriptedModel('{"children": []}')
    result = await Agent(model, output_type=Tree, output_mode="native").run("?")
    assert result.output == Tree(children=[])
    assert model.requests[0].response_schema is not None
