"""Definitions of client tools."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, client_tool, tool
from rxloop.testing import ScriptedModel, call
from rxloop.tools.client_definitions import MAX_CHARACTERS, MAX_TOOLS, client_tools

CITY = {"type": "object", "properties": {"city": {"type": "string", "minLength": 2}}, "required": ["city"]}


@tool
async def look() -> str:
    """Look."""
    return "blue"


# L105
@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("show", r"\[1\]: a definition must be a dict with name and parameters, got 'show'"),
        ({}, r"\[1\]: name is missing"),
        ({"name": None}, "a tool name must have .*, got ''"),
        ({"name": 5}, "a tool name must be a string, got 5"),
        ({"name": "no spaces"}, "of a-z, A-Z, 0-9, _ and -, got 'no spaces'"),
        ({"name": "a", "description": 5}, "description must be a string, got 5"),
        ({"name": "a", "color": "red"}, "unknown field 'color'; the fields are: name, description"),
        ({"name": "a", "strict": "yes"}, "strict must be a bool, got 'yes'"),
        ({"name": "a", "timeout": -1}, "timeout in seconds must be a positive number or None, got -1"),
        ({"type": "retrieval", "name": "a"}, "type must be 'function', got 'retrieval'"),
        ({"type": "function", "function": None}, "function must be a dict"),
        ({"type": "function", "function": {"name": "a"}, "name": "b"}, "the only field"),
        ({"name": "a", "parameters": []}, "parameters must be a JSON Schema: it must be a dict"),
        ({"name": "a", "parameters": {"type": "string"}}, "its type must be 'object', got 'string'"),
        ({"name": "a", "parameters": {"properties": []}}, "properties must be a dict of schemas by name"),
        ({"name": "a", "parameters": {"properties": {"x": 5}}}, "properties.x must be a JSON Schema, got 5"),
        ({"name": "a", "parameters": {"properties": {"x": {"type": "text"}}}}, "properties.x.type cannot be 'text'"),
        (
            {"name": "a", "parameters": {"properties": {"x": {"maximum": 10**30}}}},
            "cannot be stored as JSON: properties.x",
        ),
        ({"name": "a", "parameters": {"required": "x"}}, "required cannot be 'x'"),
        ({"name": "a", "parameters": {"$ref": "#/$defs/x"}}, "must refer to a part of this schema, got '#/\\$defs/x'"),
        (
            {"name": "a", "parameters": {"$ref": "https://h/x.json"}},
            "must refer to a part of this schema, got 'https://h/x.json'",
        ),
        ({"name": "a", "parameters": {"anyOf": {}}}, "anyOf must be a list of schemas"),
        ({"name": "a", "parameters": {"x-mark": object()}}, "got type object"),
        ({"name": "a", "result": 5}, r"\[1\]: result must be a JSON Schema, got 5"),
        ({"name": "a", "result": "int"}, r"\[1\]: result must be a JSON Schema, got 'int'"),
        ({"name": "first"}, r"\[1\]: an earlier tool is also named 'first'"),
        ({"name": "look"}, "the agent already has a tool named 'look'"),
        ({"name": "think_aloud"}, "the agent already has a tool named 'think_aloud'"),
    ],
)
def test_invalid_definition_is_refused_with_the_reason(definition: Any, message: str) -> None:
    agent = Agent(ScriptedModel("Hi"), tools=[look])
    with pytest.raises(ConfigurationError, match=message):
        agent.run("Hi", client_tools=[{"name": "first"}, definition])


# L105
@pytest.mark.parametrize("definitions", ["show", {"name": "show"}, 5])
def test_value_that_is_not_a_list_is_refused(definitions: Any) -> None:
    with pytest.raises(ConfigurationError, match="client_tools must be a list"):
        Agent(ScriptedModel("Hi")).run("Hi", client_tools=definitions)


def test_size_of_definitions_is_limited() -> None:
    with pytest.raises(ConfigurationError, match=f"must have at most {MAX_TOOLS} definitions, got {MAX_TOOLS + 1}"):
        client_tools([{"name": f"t{number}"} for number in range(MAX_TOOLS + 1)])
    with pytest.raises(ConfigurationError, match=f"must have at most {MAX_CHARACTERS:,} characters"):
        client_tools([{"name": "t", "description": "x" * MAX_CHARACTERS}])
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"properties": {"x": deep}}
    with pytest.raises(ConfigurationError, match="nested too deep"):
        client_tools([{"name": "t", "parameters": deep}])


def test_equal_definitions_are_parsed_once() -> None:
    definition: dict[str, Any] = {"name": "show", "description": "parsed once", "parameters": {**CITY}}
    sent = {"type": "function", "function": definition}
    [first] = tools = client_tools([sent])
    assert client_tools([{**sent}]) is tools
    assert client_tools(tools) is tools
    # A run records this form.
    assert client_tools([first.to_definition()]) is tools
    definition["parameters"]["maxProperties"] = 3
    [changed] = client_tools([sent])
    assert changed.definition.parameters["maxProperties"] == 3
    assert "maxProperties" not in first.definition.parameters


def test_definitions_with_the_same_json_but_different_values_are_not_confused() -> None:
    [null], [nan] = (client_tools([{"name": "show", "parameters": {"default": each}}]) for each in (None, float("nan")))
    assert (null.definition.parameters["default"], nan.definition.parameters["default"]) == (None, "NaN")
    [integer], [real] = (client_tools([{"name": "show", "parameters": {"default": each}}]) for each in (1, 1.0))
    assert (repr(integer.definition.parameters), repr(real.definition.parameters)) == (
        "{'default': 1}",
        "{'default': 1.0}",
    )


def test_least_recently_used_definitions_are_removed_from_the_cache() -> None:
    # These definitions are sent in the recorded form.
    definitions = [[{"name": f"recent{number}", "description": "", "parameters": CITY}] for number in range(33)]
    first, second, *_ = [client_tools(each) for each in definitions[:32]]
    assert client_tools(definitions[0]) is first
    client_tools(definitions[32])
    assert client_tools(definitions[0]) is first
    assert client_tools(definitions[1]) is not second


@pytest.mark.parametrize(
    "definition",
    [
        {"name": "show", "description": "Shows.", "parameters": CITY},
        {"type": "function", "name": "show", "description": "Shows.", "parameters": CITY, "strict": None},
        {"type": "function", "function": {"name": "show", "description": "Shows.", "parameters": CITY}},
    ],
)
async def test_every_form_of_a_definition_is_offered_to_the_model(definition: dict[str, Any]) -> None:  # L105
    model = ScriptedModel("Hi")
    await Agent(model, tools=[look], thoughts=False).run("Hi", client_tools=[definition])

    offered = model.requests[0].tools
    assert [each.name for each in offered] == ["look", "show"]
    assert offered[1].description == "Shows."
    assert offered[1].parameters == CITY


def test_definition_is_returned_unchanged() -> None:
    definition = {
        "name": "show",
        "description": "Shows.",
        "parameters": CITY,
        "result": {"type": "boolean"},
        "strict": True,
        "timeout": 5,
    }
    assert client_tools([definition])[0].to_definition() == definition
    assert client_tool("show").to_definition() == {
        "name": "show",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


class Trip(BaseModel):
    city: str = Field(min_length=2, description="Where to.")
    day: date
    nights: int = 1


async def test_pydantic_model_describes_and_parses_the_arguments() -> None:  # L106
    book = client_tool("book", Trip, result=bool)
    model = ScriptedModel(call("book", city="Oslo", day="soon"), call("book", city="Oslo", day="2026-05-04"), "Booked.")
    questions: list[Any] = []

    def execute(question: Any) -> bool:
        questions.append(question)
        return True

    result = await Agent(model, tools=[book]).run("Book it", on_input=execute)

    assert model.requests[0].tools[0].parameters["properties"]["city"]["description"] == "Where to."
    assert [each.call.arguments for each in questions] == [{"city": "Oslo", "day": "2026-05-04", "nights": 1}]
    assert questions[0].answer_schema == {"type": "boolean"}
    first = next(message for message in result.messages if message.role == "tool")
    assert "day: Input should be a valid date" in first.text


# L105
@pytest.mark.parametrize("wrapped", [False, True])
def test_code_in_a_definition_is_not_executed(tmp_path: Path, wrapped: bool) -> None:
    definition = {"name": "a", "result": f"open({str(tmp_path / 'made')!r}, 'w')"}
    with pytest.raises(ConfigurationError, match="result must be a JSON Schema"):
        client_tools([{"type": "function", "function": definition} if wrapped else definition])
    assert not any(tmp_path.iterdir())


def test_result_type_must_not_be_a_string(tmp_path: Path) -> None:
    text: Any = f"open({str(tmp_path / 'made')!r}, 'w')"
    with pytest.raises(ConfigurationError, match="must be a type or a JSON Schema, got the string"):
        client_tool("a", result=text)
    with pytest.raises(ConfigurationError, match="result must be a JSON Schema or a type, got 5"):
        client_tool("a", result=cast("Any", 5))
    assert not any(tmp_path.iterdir())


async def test_tool_of_a_toolset_takes_precedence_over_a_client_tool(caplog: pytest.LogCaptureFixture) -> None:
    class Toolset:
        async def tools(self, ctx: Any) -> list[Any]:
            return [look]

        async def aclose(self) -> None:
            pass

    model = ScriptedModel(call("look"), "Blue.")
    result = await Agent(model, tools=[Toolset()]).run("Look", client_tools=[{"name": "look"}])

    assert result.messages[-2].text == "blue"
    assert "Skipping tool 'look'" in caplog.text


async def test_invalid_client_tools_are_refused_by_submit_and_start() -> None:  # L105
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log, tools=[look])
    wrong: list[Any] = [{"name": "look"}]
    with pytest.raises(ConfigurationError, match="'look'"):
        await agent.submit("Hi", client_tools=wrong)
    async with Runtime({"a": agent}, log=log) as runtime:
        with pytest.raises(ConfigurationError, match="'look'"):
            await runtime.start("a", "Hi", client_tools=wrong)
    assert await log.list_runs() == []


@pytest.mark.parametrize(("count", "pending"), [(1, 1), (2, 0)])
async def test_calls_of_a_message_share_the_steps_of_a_validation(count: int, pending: int) -> None:
    # A call takes 300,000 steps, and a message may take 500,000.
    schema = {"properties": {"a": {"items": {"anyOf": [{"const": number} for number in range(500)]}}}}
    calls = [call("show_map", str(number), a=[499] * 200) for number in range(count)]
    agent = Agent(ScriptedModel(calls, "Done."), tools=[client_tool("show_map", schema)])
    result = await agent.run("Go.")
    assert len(result.pending) == pending
    texts = [message.text for message in result.messages if message.role == "tool"]
    assert len([text for text in texts if "takes too long" in text]) == count - pending
