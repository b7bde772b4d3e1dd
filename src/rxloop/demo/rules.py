"""Built-in rules for the offline model.

Rules receive the complete request, including tool results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rxloop.demo.conversation import THINK_ALOUD, Conversation, OfferedTool, PastCall, Reply, Rule
from rxloop.demo.question_parser import (
    Temperature,
    cities_in,
    described,
    evaluate,
    exact,
    failed,
    number,
    number_of,
    sum_in,
    temperature_of,
    temperatures_in,
)
from rxloop.demo.strategy_answers import strategist

_WEATHER = re.compile(
    r"\b(?:weather|temperatures?|forecast|warm|warmer|warmest|cold|colder|coldest|hot|hotter|hottest|cool|cooler|rain|"
    r"raining|rainy|snow|snowing|sunny|umbrella|degrees|celsius|fahrenheit)\b",
    re.IGNORECASE,
)
_COMPARE = re.compile(
    r"\b(?:compare|difference|which|warmer|colder|hotter|cooler|warmest|coldest|hottest)\b", re.IGNORECASE
)
_COLDER = re.compile(r"\b(?:colder|cooler|coldest|lower)\b", re.IGNORECASE)
_CONVERT = re.compile(r"\bconvert\b|\b(?:to|in)\s+(?:celsius|fahrenheit|[cf])\b", re.IGNORECASE)
_YES_OR_NO = re.compile(r"^\W*(?:and |so |but )?(?:is|are|was|does|do|will)\b", re.IGNORECASE)
_FOLLOW_UP = re.compile(r"^\W*(?:and|or|what about|how about)\b", re.IGNORECASE)
_WET = re.compile(r"rain|snow|storm|shower|drizzle|sleet", re.IGNORECASE)
_Calls = list[tuple[str, dict[str, Any]]]


def compare_stated(conversation: Conversation) -> Reply | None:
    """Compare or convert temperatures stated in the question."""
    stated = temperatures_in(conversation.question)
    if len(stated) < 2 and not (stated and _CONVERT.search(conversation.question)):
        return None
    convert = [temperature for temperature, _ in stated if temperature.unit == "F"]
    calculator = conversation.tool_with("expression") if convert else None
    sums = conversation.results(calculator.name) if calculator else []
    values = [number_of(past.result) for past in sums]
    celsius = {temperature: temperature.celsius for temperature, _ in stated}
    celsius |= {temperature: value for temperature, value in zip(convert, values, strict=False) if value is not None}
    failures = [past.result for past, value in zip(sums, values, strict=True) if value is None]
    note = f" The calculator failed ({failures[-1]}), so I converted it myself." if failures else ""
    named = [(f"{degrees} in {city}" if city else str(degrees), celsius[degrees]) for degrees, city in stated]
    converted = " ".join(f"{degrees} is {number(celsius[degrees])} °C." for degrees in convert)
    thoughts = conversation.thoughts
    calls: _Calls = []
    if conversation.thinks and not thoughts:
        calls.append(conversation.think("plan", "I bring the temperatures to Celsius, and then compare.", "planning"))
    if calculator and not sums:
        calls += [(calculator.name, calculator.fill(expression=degrees.sum_in_celsius)) for degrees in convert]
    elif conversation.thinks and len(thoughts) == 1:
        found = " ".join([converted or "All is in Celsius already.", *([_verdict("", named)] if named[1:] else [])])
        basis = sums[-1].id if sums else thoughts[0]
        calls.append(conversation.think("conclusion", found, "decision", related_to=basis, confidence=0.95))
    if calls:
        return Reply(calls=calls)
    if len(stated) == 1:
        (only, _), *_ = stated
        other = f"{number(celsius[only])} °C" if convert else f"{number(only.value * 9 / 5 + 32)} °F"
        return Reply(f"{only} is {other}.{note}")
    return Reply(_verdict(conversation.question, named) + (f" {converted}" if converted else "") + note)


def _verdict(question: str, named: Sequence[tuple[str, float]]) -> str:
    """Return a sentence that compares temperatures. It starts with yes or no if the question requires it."""
    (first, a), (second, b) = named[0], named[1]
    colder = bool(_COLDER.search(question))
    opening = ""
    if _YES_OR_NO.search(question) and _COMPARE.search(question):
        opening = "Yes, " if round(a - b, 1) != 0 and (a < b) == colder else "No, "
    if round(a - b, 1) == 0:
        return f"{opening}{first} and {second} are equally warm."
    word = "colder" if a < b else "warmer"
    return f"{opening}{first} is {word} than {second}, by {number(abs(a - b))} °C."


def plan(conversation: Conversation) -> Reply | None:
    """Plan a city visit using available city tools."""
    cities = cities_in(conversation.question)
    if not re.search(r"\bplan\b", conversation.question, re.IGNORECASE) or not cities:
        return None
    city = cities[0]
    tools = conversation.tools_with("city")
    names = {tool.name for tool in tools}
    found = [call for call in conversation.turn if call.name in names]
    thoughts = conversation.thoughts
    calls: _Calls = []
    if conversation.thinks and not thoughts:
        first = "ask the tools about it" if tools else "go by what suits most people"
        calls.append(conversation.think("plan", f"For a plan in {city} I {first} first.", "planning"))
    if not found:
        calls += [(tool.name, tool.fill(city=city)) for tool in tools]
    answered = [call for call in found if not failed(call.result)]
    warm = [temperature for call in answered if (temperature := temperature_of(call.result))]
    wet = any(_WET.search(call.result or "") for call in answered)
    indoors = wet or any(degrees.celsius < 8 for degrees in warm)
    if not calls and conversation.thinks and len(thoughts) == 1:
        place = "indoors" if indoors else "outdoors"
        basis = found[-1].id if found else thoughts[0]
        calls.append(conversation.think("choice", f"Most of it goes {place}.", "decision", related_to=basis))
    if calls:
        return Reply(calls=calls)
    afternoon = "a museum" if indoors else "a park"
    sunday = "a gallery and a long lunch" if indoors else "a boat trip or a hike"
    facts = " ".join(_sentence_about(call, city) for call in found)
    return Reply(
        f"Here is a plan for {city}. {facts + ' ' if facts else ''}Saturday: a walk through the centre in the morning, "
        f"{afternoon} in the afternoon, and dinner in the old town. Sunday: {sunday}, then coffee before you leave. "
        f"I am the offline model, so I know of {city} only what {'my tools' if found else 'you'} told me."
    )


def weather(conversation: Conversation) -> Reply | None:
    """Look up and compare the weather, with tool results of this and earlier turns."""
    question = conversation.question
    named = cities_in(question)
    compares = bool(_COMPARE.search(question))
    weathers = bool(_WEATHER.search(question))
    if not (weathers or compares or (named and _FOLLOW_UP.search(question))):
        return None
    tool = conversation.tool_with("city", "weather", "temperature", "forecast")
    if tool is None:
        return _no_weather(named) if named and weathers else None
    known = {str(call.arguments.get("city")): call for call in conversation.calls if call.name == tool.name}
    cities = named + _carried_over(conversation, tool, named, compares)
    if not cities or not (weathers or known):
        return None
    asked = {str(call.arguments.get("city")) for call in conversation.results(tool.name)}
    missing = [city for city in cities if city not in asked and (city in named or city not in known)]
    calls = _look_up(conversation, tool, cities, missing)
    if calls:
        return Reply(calls=calls)
    found = [(city, known[city]) for city in cities]
    calls = _think_about(conversation, found)
    return Reply(calls=calls) if calls else Reply(_weather_answer(conversation, found))


def _carried_over(conversation: Conversation, tool: OfferedTool, named: list[str], compares: bool) -> list[str]:
    """Return the cities of earlier questions that also apply to this question."""
    wanted = (2 if compares else 1) - len(named)
    asked = [str(call.arguments.get("city")) for call in conversation.calls if call.name == tool.name]
    latest = [city for city in dict.fromkeys(reversed(asked)) if city not in named]
    return latest[:wanted][::-1] if wanted > 0 else []


def _no_weather(cities: list[str]) -> Reply:
    return Reply(
        f"I cannot look up the weather in {' and '.join(cities)}: no tool with a `city` argument was offered to me, "
        "and as the offline model I know nothing by myself."
    )


def _look_up(conversation: Conversation, tool: OfferedTool, cities: list[str], missing: list[str]) -> _Calls:
    calls: _Calls = []
    if missing and conversation.thinks and not conversation.thoughts:
        then = " and compare" if len(cities) > 1 else ""
        thought = f"I ask {tool.name} about {' and '.join(missing)}{then}."
        calls.append(conversation.think("plan", thought, "planning"))
    return calls + [(tool.name, tool.fill(city=city)) for city in missing]


def _think_about(conversation: Conversation, found: list[tuple[str, PastCall]]) -> _Calls:
    """Think about each result, call the calculator if necessary, and combine the thoughts."""
    thoughts = conversation.thoughts
    thinks = conversation.thinks and len(found) > 1
    calls: _Calls = []
    if thinks and len(thoughts) <= 1:
        calls = [
            conversation.think(
                re.sub(r"\W+", "-", city.lower()),
                _sentence_about(call, city),
                "observation",
                related_to=call.id,
                confidence=0.9,
            )
            for city, call in found
        ]
    calculator = _calculator(conversation, found)
    worked = conversation.results(calculator.name) if calculator else []
    if calculator and not worked:
        minuend, subtrahend = (temperature.sum_in_celsius for _, temperature in _temperatures(found))
        return [*calls, (calculator.name, calculator.fill(expression=f"{minuend} - {subtrahend}"))]
    if thinks and (calls or (worked and conversation.turn[-1] == worked[-1])):
        basis = worked[-1].id if worked else next(iter(thoughts), found[-1][1].id)
        drawn = "Not every result is a temperature: I say so."
        if len(_temperatures(found)) == len(found):
            drawn = _verdict("", _warmths(conversation, found))
        calls.append(conversation.think("conclusion", drawn, "decision", related_to=basis))
    return calls


def _calculator(conversation: Conversation, found: list[tuple[str, PastCall]]) -> OfferedTool | None:
    """Return the calculator if the question asks for the difference of two temperatures."""
    asked = re.search(r"\bdifference\b", conversation.question, re.IGNORECASE)
    return conversation.tool_with("expression") if asked and len(found) == len(_temperatures(found)) == 2 else None


def _temperatures(found: list[tuple[str, PastCall]]) -> list[tuple[str, Temperature]]:
    return [(city, temperature) for city, call in found if (temperature := temperature_of(call.result))]


def _warmths(conversation: Conversation, found: list[tuple[str, PastCall]]) -> list[tuple[str, float]]:
    """Return the temperature of each city in Celsius, or the difference if the calculator was used."""
    calculator = _calculator(conversation, found)
    worked = conversation.results(calculator.name) if calculator else []
    value = number_of(worked[-1].result) if worked else None
    if value is not None:
        return [(found[0][0], value), (found[1][0], 0.0)]
    return [(city, temperature.celsius) for city, temperature in _temperatures(found)]


def _weather_answer(conversation: Conversation, found: list[tuple[str, PastCall]]) -> str:
    sentences = [_sentence_about(call, city) for city, call in found]
    if len(found) < 2:
        return sentences[0]
    if len(_temperatures(found)) < len(found):
        return " ".join([*sentences, "So I cannot compare them."])
    warm = _warmths(conversation, found)
    if len(found) == 2:
        return " ".join([_verdict(conversation.question, warm), *sentences])
    ranked = sorted(warm, key=lambda each: each[1], reverse=True)
    return " ".join([f"The warmest is {ranked[0][0]}, and the coldest is {ranked[-1][0]}.", *sentences])


def _sentence_about(call: PastCall, city: str) -> str:
    """Return a sentence about the result of a tool for a city."""
    result = (call.result or "").strip()
    if failed(result):
        return f"I could not get an answer from {call.name} for {city}: {result.rstrip('.') or 'it said nothing'}."
    temperature = temperature_of(result)
    more = described(result)
    if temperature is None or more == result:
        return f"{'' if city in more else f'For {city}, {call.name} says: '}{(more or result).rstrip('.')}."
    other = f" ({number(temperature.celsius)} °C)" if temperature.unit == "F" else ""
    extra = ", ".join(part for part in more.split(", ") if part != city)
    return f"In {city} it is {temperature}{other}{f', {extra}' if extra else ''}."


def arithmetic(conversation: Conversation) -> Reply | None:
    """Evaluate an arithmetic expression, using a calculator tool if available."""
    calculator = conversation.tool_with("expression")
    expression = sum_in(conversation.question, _last_number(conversation))
    if expression is None:
        return None
    if calculator is None:
        try:
            return Reply(f"{expression} is {exact(evaluate(expression))}.")
        except ArithmeticError as error:
            return Reply(f"I cannot work out {expression}: {error}.")
    worked = conversation.results(calculator.name)
    if not worked:
        calls: _Calls = [(calculator.name, calculator.fill(expression=expression))]
        if conversation.thinks:
            thought = conversation.think("sum", f"This is a sum: {calculator.name} is surer than I am.", "planning")
            calls.insert(0, thought)
        return Reply(calls=calls)
    value = number_of(worked[-1].result)
    if value is None:
        why = (worked[-1].result or "it said nothing").rstrip(".")
        return Reply(f"{calculator.name} could not work out {expression}: {why}.")
    return Reply(f"{expression} is {exact(value)}.")


def _last_number(conversation: Conversation) -> float | None:
    """Extract the previous arithmetic result from earlier answers."""
    said = [answer for answer in conversation.answers if re.search(r" is -?[\d.e+]+\.$", answer)]
    return number_of(said[-1].rstrip(".").rpartition(" is ")[2]) if said else None


def introduction(conversation: Conversation) -> Reply:
    """Introduce the offline model. This is the last rule."""
    tools = [name for name in conversation.tools if name != THINK_ALOUD]
    offered = f" The tools that I was offered: {', '.join(tools)}." if tools else ""
    asked = " ".join(conversation.question.split())
    heard = f'To "{asked[:60]}{"..." if len(asked) > 60 else ""}" I have no answer. ' if asked else ""
    return Reply(
        f"{heard}I am the offline model: a few rules, and not a language model. I can look up the "
        f"weather with a tool, compare temperatures, plan a weekend and calculate.{offered}"
    )


BUILT_IN: tuple[Rule, ...] = (strategist, compare_stated, plan, weather, arithmetic, introduction)
"""Built-in rules in evaluation order."""
