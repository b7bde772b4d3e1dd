"""Typed answers of the offline model."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from rxloop import Agent, op, tool
from rxloop.testing import OfflineModel

MODES = ["auto", "native", "tool", "prompted"]


class City(BaseModel):
    name: str
    population: int


class Odd(BaseModel):
    kind: Literal["a", "b"]
    size: int = Field(ge=7)
    share: float
    open: bool
    city: City
    twin: City | None
    notes: list[str]
    note: str


@pytest.mark.parametrize("mode", MODES)
async def test_typed_answer_about_a_known_country(mode: Any) -> None:
    # Program 12
    offline = OfflineModel()
    async with Agent(offline.provider(), output_type=City, output_mode=mode) as agent:
        run = agent.run("The capital of Norway")
        grown = [city async for city in run.pipe(op.partial(City))]
        assert (await run).output == City(name="Oslo", population=717_710)
        await agent.model.aclose()
    assert grown[-1] == City(name="Oslo", population=717_710)
    assert len(grown) > 2
    assert len(offline.requests) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_typed_answer_to_an_unknown_question_is_valid_and_mentions_the_offline_model(mode: Any) -> None:
    offline = OfflineModel()
    async with Agent(offline.provider(), output_type=Odd, output_mode=mode) as agent:
        odd = (await agent.run("How odd is it?")).output
        await agent.model.aclose()
    assert (odd.kind, odd.size, odd.share, odd.open, odd.twin, odd.notes) == ("a", 7, 1.0, False, None, [])
    assert "offline model" in odd.note


async def test_typed_answer_follows_tool_calls() -> None:
    class Weather(BaseModel):
        summary: str

    @tool
    async def get_weather(city: str) -> str:
        """The weather."""
        return f"7 °C in {city}"

    model = OfflineModel().provider()
    result = await Agent(model, tools=[get_weather], output_type=Weather).run("What is the weather in Oslo?")
    await model.aclose()
    assert "7 °C" in result.output.summary
