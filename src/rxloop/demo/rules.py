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
    describe_result,
    evaluate,
    find_cities,
    find_expression,
    find_temperatures,
    format_exact,
    format_number,
    is_failure,
    parse_number,
    parse_temperature,
)
from rxloop.demo.strategy_answers import strategist

_WEATHER = re.compile(
    r"\b(?:weather|temperatures?|forecast|warm|warmer|warmest|cold|colder|coldest|hot|hotter|hottest|cool|cooler|rain|"
    r"raining|rainy|snow|snowing|sunny|umbrella|degrees|celsius|fahrenheit)\b",
    re.IGNORECASE,
)
_COMPARE_WORDS = re.compile(
    r"\b(?:compare|difference|which|warmer|colder|hotter|cooler|warmest|coldest|hottest)\b", re.IGNORECASE
)
_COLDER_WORDS = re.compile(r"\b(?:colder|cooler|coldest|lower)\b", re.IGNORECASE)
_CONVERT_WORDS = re.compile(r"\bconvert\b|\b(?:to|in)\s+(?:celsius|fahrenheit|[cf])\b", re.IGNORECASE)
_YES_OR_NO = re.compile(r"^\W*(?:and |so |but )?(?:is|are|was|does|do|will)\b", re.IGNORECASE)
_FOLLOW_UP = re.compile(r"^\W*(?:and|or|what about|how about)\b", re.IGNORECASE)
_PRECIPITATION = re.compile(r"rain|snow|storm|shower|drizzle|sleet", re.IGNORECASE)
_Calls = list[tuple[str, dict[str, Any]]]


def compare_temperatures(conversation: Conversation) -> Reply | None:
    """Compare or convert temperatures stated in the question."""
    stated = find_temperatures(conversation.question)
    if len(stated) < 2 and not (stated and _CONVERT_WORDS.search(conversation.question)):
        return None
    convert = [temperature for temperature, _ in stated if temperature.unit == "F"]
    calculator = conversation.find_tool("expression") if convert else None
    sums = conversation.results(calculator.name) if calculator else []
    values = [parse_number(past.result) for past in sums]
    celsius = {temperature: temperature.celsius for temperature, _ in stated}
    celsius |= {temperature: value for temperature, value in zip(convert, values, strict=False) if value is not None}
    failures = [past.result for past, value in zip(sums, values, strict=True) if value is None]
    note = f" The calculator failed ({failures[-1]}), so I converted it myself." if failures else ""
    named = [(f"{degrees} in {city}" if city else str(degrees), celsius[degrees]) for degrees, city in stated]
    converted = " ".join(f"{degrees} is {format_number(celsius[degrees])} °C." for degrees in convert)
    thoughts = conversation.thoughts
    calls: _Calls = []
    if conversation.can_think and not thoughts:
        calls.append(conversation.think("plan", "I bring the temperatures to Celsius, and then compare.", "planning"))
    if calculator and not sums:
        calls += [(calculator.name, calculator.fill(expression=degrees.sum_in_celsius)) for degrees in convert]
    elif conversation.can_think and len(thoughts) == 1:
        conclusion = " ".join(
            [converted or "All is in Celsius already.", *([_compare("", named)] if named[1:] else [])]
        )
        basis = sums[-1].id if sums else thoughts[0]
        calls.append(conversation.think("conclusion", conclusion, "decision", related_to=basis, confidence=0.95))
    if calls:
        return Reply(calls=calls)
    if len(stated) == 1:
        (only, _), *_ = stated
        other = f"{format_number(celsius[only])} °C" if convert else f"{format_number(only.value * 9 / 5 + 32)} °F"
        return Reply(f"{only} is {other}.{note}")
    return Reply(_compare(conversation.question, named) + (f" {converted}" if converted else "") + note)


def _compare(question: str, named: Sequence[tuple[str, float]]) -> str:
    """Return a sentence that compares temperatures. It starts with yes or no if the question requires it."""
    (first, a), (second, b) = named[0], named[1]
    colder = bool(_COLDER_WORDS.search(question))
    opening = ""
    if _YES_OR_NO.search(question) and _COMPARE_WORDS.search(question):
        opening = "Yes, " if round(a - b, 1) != 0 and (a < b) == colder else "No, "
    if round(a - b, 1) == 0:
        return f"{opening}{first} and {second} are equally warm."
    word = "colder" if a < b else "warmer"
    return f"{opening}{first} is {word} than {second}, by {format_number(abs(a - b))} °C."


def plan(conversation: Conversation) -> Reply | None:
    """Plan a city visit using available city tools."""
    cities = find_cities(conversation.question)
    if not re.search(r"\bplan\b", conversation.question, re.IGNORECASE) or not cities:
        return None
    city = cities[0]
    tools = conversation.find_tools("city")
    names = {tool.name for tool in tools}
    finished = [call for call in conversation.turn if call.name in names]
    thoughts = conversation.thoughts
    calls: _Calls = []
    if conversation.can_think and not thoughts:
        first = "ask the tools about it" if tools else "go by what suits most people"
        calls.append(conversation.think("plan", f"For a plan in {city} I {first} first.", "planning"))
    if not finished:
        calls += [(tool.name, tool.fill(city=city)) for tool in tools]
    answered = [call for call in finished if not is_failure(call.result)]
    warm = [temperature for call in answered if (temperature := parse_temperature(call.result))]
    wet = any(_PRECIPITATION.search(call.result or "") for call in answered)
    indoors = wet or any(degrees.celsius < 8 for degrees in warm)
    if not calls and conversation.can_think and len(thoughts) == 1:
        location = "indoors" if indoors else "outdoors"
        basis = finished[-1].id if finished else thoughts[0]
        calls.append(conversation.think("choice", f"Most of it goes {location}.", "decision", related_to=basis))
    if calls:
        return Reply(calls=calls)
    afternoon = "a museum" if indoors else "a park"
    sunday = "a gallery and a long lunch" if indoors else "a boat trip or a hike"
    facts = " ".join(_describe(call, city) for call in finished)
    return Reply(
        f"Here is a plan for {city}. {facts + ' ' if facts else ''}Saturday: a walk through the centre in the morning, "
        f"{afternoon} in the afternoon, and dinner in the old town. Sunday: {sunday}, then coffee before you leave. "
        f"I am the offline model, so I know of {city} only what {'my tools' if finished else 'you'} told me."
    )


def weather(conversation: Conversation) -> Reply | None:
    """Look up and compare the weather, with tool results of this and earlier turns."""
    question = conversation.question
    named = find_cities(question)
    compares = bool(_COMPARE_WORDS.search(question))
    weathers = bool(_WEATHER.search(question))
    if not (weathers or compares or (named and _FOLLOW_UP.search(question))):
        return None
    tool = conversation.find_tool("city", "weather", "temperature", "forecast")
    if tool is None:
        return _refuse_weather(named) if named and weathers else None
    known = {str(call.arguments.get("city")): call for call in conversation.calls if call.name == tool.name}
    cities = named + _find_earlier_cities(conversation, tool, named, compares)
    if not cities or not (weathers or known):
        return None
    requested = {str(call.arguments.get("city")) for call in conversation.results(tool.name)}
    missing = [city for city in cities if city not in requested and (city in named or city not in known)]
    calls = _request_weather(conversation, tool, cities, missing)
    if calls:
        return Reply(calls=calls)
    pairs = [(city, known[city]) for city in cities]
    calls = _think(conversation, pairs)
    return Reply(calls=calls) if calls else Reply(_answer_weather(conversation, pairs))


def _find_earlier_cities(conversation: Conversation, tool: OfferedTool, named: list[str], compares: bool) -> list[str]:
    """Return the cities of earlier questions that also apply to this question."""
    missing = (2 if compares else 1) - len(named)
    requested = [str(call.arguments.get("city")) for call in conversation.calls if call.name == tool.name]
    latest = [city for city in dict.fromkeys(reversed(requested)) if city not in named]
    return latest[:missing][::-1] if missing > 0 else []


def _refuse_weather(cities: list[str]) -> Reply:
    return Reply(
        f"I cannot look up the weather in {' and '.join(cities)}: no tool with a `city` argument was offered to me, "
        "and as the offline model I know nothing by myself."
    )


def _request_weather(conversation: Conversation, tool: OfferedTool, cities: list[str], missing: list[str]) -> _Calls:
    calls: _Calls = []
    if missing and conversation.can_think and not conversation.thoughts:
        then = " and compare" if len(cities) > 1 else ""
        thought = f"I ask {tool.name} about {' and '.join(missing)}{then}."
        calls.append(conversation.think("plan", thought, "planning"))
    return calls + [(tool.name, tool.fill(city=city)) for city in missing]


def _think(conversation: Conversation, pairs: list[tuple[str, PastCall]]) -> _Calls:
    """Think about each result, call the calculator if necessary, and combine the thoughts."""
    thoughts = conversation.thoughts
    thinks = conversation.can_think and len(pairs) > 1
    calls: _Calls = []
    if thinks and len(thoughts) <= 1:
        calls = [
            conversation.think(
                re.sub(r"\W+", "-", city.lower()),
                _describe(call, city),
                "observation",
                related_to=call.id,
                confidence=0.9,
            )
            for city, call in pairs
        ]
    calculator = _find_calculator(conversation, pairs)
    results = conversation.results(calculator.name) if calculator else []
    if calculator and not results:
        minuend, subtrahend = (temperature.sum_in_celsius for _, temperature in _find_temperatures(pairs))
        return [*calls, (calculator.name, calculator.fill(expression=f"{minuend} - {subtrahend}"))]
    if thinks and (calls or (results and conversation.turn[-1] == results[-1])):
        basis = results[-1].id if results else next(iter(thoughts), pairs[-1][1].id)
        conclusion = "Not every result is a temperature: I say so."
        if len(_find_temperatures(pairs)) == len(pairs):
            conclusion = _compare("", _to_celsius(conversation, pairs))
        calls.append(conversation.think("conclusion", conclusion, "decision", related_to=basis))
    return calls


def _find_calculator(conversation: Conversation, pairs: list[tuple[str, PastCall]]) -> OfferedTool | None:
    """Return the calculator if the question asks for the difference of two temperatures."""
    is_difference = re.search(r"\bdifference\b", conversation.question, re.IGNORECASE)
    return (
        conversation.find_tool("expression")
        if is_difference and len(pairs) == len(_find_temperatures(pairs)) == 2
        else None
    )


def _find_temperatures(pairs: list[tuple[str, PastCall]]) -> list[tuple[str, Temperature]]:
    return [(city, temperature) for city, call in pairs if (temperature := parse_temperature(call.result))]


def _to_celsius(conversation: Conversation, pairs: list[tuple[str, PastCall]]) -> list[tuple[str, float]]:
    """Return the temperature of each city in Celsius, or the difference if the calculator was used."""
    calculator = _find_calculator(conversation, pairs)
    results = conversation.results(calculator.name) if calculator else []
    value = parse_number(results[-1].result) if results else None
    if value is not None:
        return [(pairs[0][0], value), (pairs[1][0], 0.0)]
    return [(city, temperature.celsius) for city, temperature in _find_temperatures(pairs)]


def _answer_weather(conversation: Conversation, pairs: list[tuple[str, PastCall]]) -> str:
    sentences = [_describe(call, city) for city, call in pairs]
    if len(pairs) < 2:
        return sentences[0]
    if len(_find_temperatures(pairs)) < len(pairs):
        return " ".join([*sentences, "So I cannot compare them."])
    warm = _to_celsius(conversation, pairs)
    if len(pairs) == 2:
        return " ".join([_compare(conversation.question, warm), *sentences])
    ranked = sorted(warm, key=lambda each: each[1], reverse=True)
    return " ".join([f"The warmest is {ranked[0][0]}, and the coldest is {ranked[-1][0]}.", *sentences])


def _describe(call: PastCall, city: str) -> str:
    """Return a sentence about the result of a tool for a city."""
    result = (call.result or "").strip()
    if is_failure(result):
        return f"I could not get an answer from {call.name} for {city}: {result.rstrip('.') or 'it said nothing'}."
    temperature = parse_temperature(result)
    more = describe_result(result)
    if temperature is None or more == result:
        return f"{'' if city in more else f'For {city}, {call.name} says: '}{(more or result).rstrip('.')}."
    other = f" ({format_number(temperature.celsius)} °C)" if temperature.unit == "F" else ""
    extra = ", ".join(part for part in more.split(", ") if part != city)
    return f"In {city} it is {temperature}{other}{f', {extra}' if extra else ''}."


def arithmetic(conversation: Conversation) -> Reply | None:
    """Evaluate an arithmetic expression, using a calculator tool if available."""
    calculator = conversation.find_tool("expression")
    expression = find_expression(conversation.question, _find_last_number(conversation))
    if expression is None:
        return None
    if calculator is None:
        try:
            return Reply(f"{expression} is {format_exact(evaluate(expression))}.")
        except ArithmeticError as error:
            return Reply(f"I cannot work out {expression}: {error}.")
    results = conversation.results(calculator.name)
    if not results:
        calls: _Calls = [(calculator.name, calculator.fill(expression=expression))]
        if conversation.can_think:
            thought = conversation.think("sum", f"This is a sum: {calculator.name} is surer than I am.", "planning")
            calls.insert(0, thought)
        return Reply(calls=calls)
    value = parse_number(results[-1].result)
    if value is None:
        reason = (results[-1].result or "it said nothing").rstrip(".")
        return Reply(f"{calculator.name} could not work out {expression}: {reason}.")
    return Reply(f"{expression} is {format_exact(value)}.")


def _find_last_number(conversation: Conversation) -> float | None:
    """Extract the previous arithmetic result from earlier answers."""
    results = [answer for answer in conversation.answers if re.search(r" is -?[\d.e+]+\.$", answer)]
    return parse_number(results[-1].rstrip(".").rpartition(" is ")[2]) if results else None


def introduction(conversation: Conversation) -> Reply:
    """Introduce the offline model. This is the last rule."""
    tools = [name for name in conversation.tools if name != THINK_ALOUD]
    offered = f" The tools that I was offered: {', '.join(tools)}." if tools else ""
    question = " ".join(conversation.question.split())
    opening = f'To "{question[:60]}{"..." if len(question) > 60 else ""}" I have no answer. ' if question else ""
    return Reply(
        f"{opening}I am the offline model: a few rules, and not a language model. I can look up the "
        f"weather with a tool, compare temperatures, plan a weekend and calculate.{offered}"
    )


BUILT_IN_RULES: tuple[Rule, ...] = (strategist, compare_temperatures, plan, weather, arithmetic, introduction)
"""Built-in rules in evaluation order."""
