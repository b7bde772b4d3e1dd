from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from runs import collect, letters, outcome, repeated
from rxloop import Agent, ConfigurationError, InvalidOutput, NotFinished, RunError, tool
from rxloop.testing import ScriptedModel, call, turn


class City(BaseModel):
    name: str
    population: int = Field(ge=0)


OSLO = '{"name": "Oslo", "population": 717710}'


@pytest.mark.parametrize(
    "text", [OSLO, f"```json\n{OSLO}\n```", f"```\n{OSLO}\n```", f"  \n```JSON\n{OSLO}\n```\n", f"\n{OSLO} "]
)
async def test_an_answer_becomes_a_value_of_the_type(text: str) -> None:
    result = await Agent(ScriptedModel(text), output_type=City).run("The capital of Norway")

    assert result.output == City(name="Oslo", population=717710)
    assert result.content == text


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (int, "7", 7),
        (bool, "false", False),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Literal["yes", "no"], '"yes"', "yes"),
        (City | None, "null", None),
    ],
)
async def test_anything_that_can_be_validated_is_a_type(output_type: Any, text: str, value: Any) -> None:
    result = await Agent(ScriptedModel(text), output_type=output_type).run("?")

    assert result.output == value
    assert type(result.output) is type(value)


async def test_text_is_taken_as_it_is() -> None:
    assert (await Agent(ScriptedModel("  7 \n")).run("?")).output == "  7 \n"


async def test_an_answer_that_does_not_fit_is_sent_back_with_the_field() -> None:
    model = ScriptedModel('{"name": "Oslo", "population": -1}', "No idea.", OSLO)
    run = Agent(model, output_type=City).run("The capital of Norway")
    events = await collect(run)

    assert (await run).output.name == "Oslo"
    assert letters(events) == "twlckmlckmlckF"
    assert "population: " in model.requests[1].messages[-1].text
    assert "JSON" in model.requests[2].messages[-1].text


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_so_many_retries_and_then_the_run_fails(retries: int) -> None:
    model = ScriptedModel(*repeated("No idea.", 9))

    with pytest.raises(RunError, match=f"after {retries} retries") as caught:
        await Agent(model, output_type=City, output_retries=retries).run("?")

    assert len(model.requests) == retries + 1
    assert caught.value.code == "output"
    assert isinstance(caught.value.__cause__, InvalidOutput)
    with pytest.raises(NotFinished, match="failed"):
        _ = caught.value.result.output


@pytest.mark.parametrize(
    ("mode", "prompted", "native"), [("auto", True, True), ("native", False, True), ("prompted", True, False)]
)
async def test_the_schema_goes_where_the_mode_says(mode: Any, prompted: bool, native: bool) -> None:
    model = ScriptedModel(OSLO)
    await Agent(model, output_type=City, output_mode=mode, instructions="Be brief.").run("?")

    request = model.requests[0]
    assert ("population" in "".join(message.text for message in request.system)) is prompted
    assert (request.response_schema is not None) is native
    assert "Be brief." in request.system[0].text


async def test_tools_run_before_the_answer_is_looked_at() -> None:
    @tool
    async def population(city: str) -> int:
        """Looks it up."""
        return 717710

    model = ScriptedModel(["Let me see.", call("population", city="Oslo")], OSLO)
    result = await Agent(model, tools=[population], output_type=City).run("?")

    assert result.output.population == 717710
    assert len(model.requests) == 2


async def test_an_answer_that_was_cut_short_is_not_taken_for_the_value() -> None:
    model = ScriptedModel(turn('{"name": "Os', finish_reason="length"), OSLO)
    result = await outcome(Agent(model, output_type=City).run("?"))

    assert result.output.name == "Oslo"


def test_a_mode_that_does_not_exist_is_refused_by_name() -> None:
    mode: Any = "telepathy"
    with pytest.raises(ConfigurationError, match=r"output_mode.*telepathy"):
        Agent(ScriptedModel(), output_type=City, output_mode=mode)


def test_a_type_that_cannot_be_validated_is_refused_when_the_agent_is_made() -> None:
    class Odd:
        pass

    with pytest.raises(ConfigurationError, match=r"output_type.*Odd"):
        Agent(ScriptedModel(), output_type=Odd)
