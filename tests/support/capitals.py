"""Models and a tool for experiments about capitals."""

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


def last_country(request: ModelRequest) -> str:
    """Return the country in the most recent question."""
    question = [message.text for message in request.messages if message.role == "user"][-1]
    return question.split()[-1].rstrip("?")


def make_capital_model(*countries: str, **wrong_answers: str) -> ScriptedModel:
    """Return a model that answers correctly for some countries, incorrectly for others, and otherwise fails."""

    def answer(request: ModelRequest) -> Any:
        country = last_country(request)
        if country in countries:
            return turn(CAPITALS[country], usage=USAGE)
        if country in wrong_answers:
            return turn(wrong_answers[country], usage=USAGE)
        return RuntimeError(f"{country} is not on the map")

    return ScriptedModel(*[answer] * 200, name="mine:m")


def make_lookup_model() -> ScriptedModel:
    """Return a model that calls the lookup tool."""

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return turn(last.text, usage=USAGE)
        return turn(calls=[call("lookup", country=last_country(request))], usage=USAGE)

    return ScriptedModel(*[answer] * 200, name="mine:m")


def agent(model: ScriptedModel | None = None, **options: Any) -> Agent[None, str]:
    """Create an agent. The default model knows all capitals."""
    return Agent(model or make_capital_model(*CAPITALS), thoughts=False, **options)
