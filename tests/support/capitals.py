"""A small world to experiment in: models that know some capitals, and a tool that knows all of them."""

from __future__ import annotations

from typing import Any

from rxloop import Agent, Usage, tool
from rxloop.evals import Case
from rxloop.pipeline.requests import ModelRequest
from rxloop.testing import ScriptedModel, call, turn

CAPITALS = {"Norway": "Oslo", "Sweden": "Stockholm", "Fiji": "Suva", "Malta": "Valletta"}
CASES = [Case(f"Capital of {country}?", capital, id=country) for country, capital in CAPITALS.items()]
USAGE = Usage(input_tokens=100, output_tokens=10)


@tool
async def lookup(country: str) -> str:
    """Look up a capital."""
    return CAPITALS[country]


def country_of(request: ModelRequest) -> str:
    """The country that was asked for last."""
    asked = [message.text for message in request.messages if message.role == "user"][-1]
    return asked.split()[-1].rstrip("?")


def knows(*countries: str, **instead: str) -> ScriptedModel:
    """A model that knows these capitals, says something else of others, and fails for the rest."""

    def answer(request: ModelRequest) -> Any:
        country = country_of(request)
        if country in countries:
            return turn(CAPITALS[country], usage=USAGE)
        if country in instead:
            return turn(instead[country], usage=USAGE)
        return RuntimeError(f"{country} is not on the map")

    return ScriptedModel(*[answer] * 200, name="mine:m")


def looks_up() -> ScriptedModel:
    """A model that asks the tool."""

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return turn(last.text, usage=USAGE)
        return turn(calls=[call("lookup", country=country_of(request))], usage=USAGE)

    return ScriptedModel(*[answer] * 200, name="mine:m")


def agent(model: ScriptedModel | None = None, **options: Any) -> Agent[None, str]:
    """An agent that knows every capital, or has this model."""
    return Agent(model or knows(*CAPITALS), thoughts=False, **options)
