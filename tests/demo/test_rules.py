from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.demo.question_parser import (
    Temperature,
    evaluate,
    find_cities,
    find_expression,
    find_temperatures,
    is_failure,
    parse_number,
    parse_temperature,
)
from rxloop.demo.rules import BUILT_IN_RULES
from rxloop.testing import Conversation, Reply

Tool = Callable[..., Any]


def make_schema(name: str, *arguments: str, required: bool = True) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments) if required else []}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


class Chat:
    """Conversation with the built-in rules, including tool calls."""

    def __init__(self, **tools: tuple[str, Tool]) -> None:
        self.tools = tools
        self.messages: list[dict[str, Any]] = []
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.ids: list[str] = []

    def ask(self, question: str) -> str:
        self.made = []
        self.ids = []
        self.messages.append({"role": "user", "content": question})
        for _ in range(6):
            reply = self._reply()
            if not reply.calls:
                self.messages.append({"role": "assistant", "content": reply.text})
                return reply.text
            self._call_tools(reply)
        raise AssertionError(f"no answer after 6 rounds: {self.made}")

    def _reply(self) -> Reply:
        offered = [make_schema(name, argument) for name, (argument, _) in self.tools.items()]
        conversation = Conversation({"messages": self.messages, "tools": offered})
        return next(reply for rule in BUILT_IN_RULES if (reply := rule(conversation)) is not None)

    def _call_tools(self, reply: Reply) -> None:
        first = len(Conversation({"messages": self.messages}).calls) + 1
        calls: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for index, (name, arguments) in enumerate(reply.calls):
            call_id = f"call_{first + index}"
            self.made.append((name, dict(arguments)))
            self.ids.append(call_id)
            calls.append({"id": call_id, "function": {"name": name, "arguments": json.dumps(arguments)}})
            result = self.tools[name][1](**arguments)
            text = result if isinstance(result, str) else json.dumps(result)
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        self.messages += [{"role": "assistant", "content": None, "tool_calls": calls}, *results]

    @property
    def thoughts(self) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.made if name == "think_aloud"]


def weather(**results: Any) -> tuple[str, Tool]:
    return "city", lambda city: results.get(city, f"No city is called {city!r}; try the English name.")


def calculator(answer: Callable[[float], Any] = lambda value: value) -> tuple[str, Tool]:
    return "expression", lambda expression: answer(evaluate(expression))


THINK = ("thought", lambda thought, thought_id, **_: {"acknowledged": True, "thoughtId": thought_id})
OSLO = {"temperature_c": 7, "sky": "light rain"}
BERGEN = {"temperature": 48.2, "unit": "F"}


def test_weather_answer_uses_the_tool() -> None:
    chat = Chat(get_weather=weather(Oslo=OSLO))
    assert chat.ask("Weather in Oslo?") == "In Oslo it is 7 °C, light rain."
    assert chat.made == [("get_weather", {"city": "Oslo"})]


def test_weather_rule_accepts_any_city_tool_and_prefers_a_weather_tool() -> None:
    chat = Chat(find_hotels=weather(), local_forecast=weather(Oslo="7 C and cloudy"))
    assert chat.ask("How warm is it in Oslo?") == "For Oslo, local_forecast says: 7 C and cloudy."
    assert Chat(lookup=weather(Oslo="Oslo: sunny, 20 C.")).ask("Weather in Oslo?") == "Oslo: sunny, 20 C."


def test_two_cities_are_compared_across_units() -> None:
    chat = Chat(get_weather=weather(Oslo=OSLO, Bergen=BERGEN))
    answer = chat.ask("Compare the weather in Oslo and Bergen, and tell me the difference in Celsius.")
    assert answer == (
        "Oslo is colder than Bergen, by 2 °C. In Oslo it is 7 °C, light rain. In Bergen it is 48.2 °F (9 °C)."
    )
    assert chat.made == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]


def test_answer_depends_on_the_tool_results() -> None:
    for oslo, opening in [
        (7, "No, Oslo is colder"),
        (9.0, "No, Oslo and Bergen are equally"),
        (30, "Yes, Oslo is war"),
    ]:
        chat = Chat(get_weather=weather(Oslo={"temp": oslo}, Bergen=BERGEN))
        assert chat.ask("Is it warmer in Oslo than in Bergen?").startswith(opening)


def test_thoughts_precede_or_accompany_calls_and_refer_to_them() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO, Bergen=BERGEN))
    chat.ask("Compare the weather in Oslo and Bergen.")
    plan, oslo, bergen, conclusion = chat.thoughts
    by_city = {arguments.get("city"): call_id for (_, arguments), call_id in zip(chat.made, chat.ids, strict=True)}
    assert [name for name, _ in chat.made][:3] == ["think_aloud", "get_weather", "get_weather"]
    assert oslo["related_to"] == by_city["Oslo"]
    assert bergen["related_to"] == by_city["Bergen"]
    assert conclusion["related_to"] == plan["thought_id"] == "plan"
    assert conclusion["thought_type"] == "decision"


def test_difference_is_calculated_by_the_tool_and_used_in_the_conclusion() -> None:
    wrong = calculator(lambda value: {"result": value - 40})
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO, Bergen=BERGEN), calculate=wrong)
    answer = chat.ask("Compare the weather in Oslo and Bergen, and tell me the difference in Celsius.")
    names = [name for name, _ in chat.made]
    assert names == [
        "think_aloud",
        "get_weather",
        "get_weather",
        "think_aloud",
        "think_aloud",
        "calculate",
        "think_aloud",
    ]
    assert chat.made[5] == ("calculate", {"expression": "7 - (48.2 - 32) * 5 / 9"})
    assert chat.thoughts[-1]["related_to"] == chat.ids[5]
    assert chat.thoughts[-1]["thought"] == "Oslo is colder than Bergen, by 42 °C."
    assert answer.startswith("Oslo is colder than Bergen, by 42 °C. In Oslo it is 7 °C")


def test_difference_is_calculated_directly_after_a_calculator_failure() -> None:
    broken = ("expression", lambda expression: "timed out after 5 s")
    chat = Chat(get_weather=weather(Oslo=OSLO, Bergen=BERGEN), calculate=broken)
    answer = chat.ask("What is the temperature difference between Oslo and Bergen?")
    assert answer.startswith("Oslo is colder than Bergen, by 2 °C.")
    assert [name for name, _ in chat.made] == ["get_weather", "get_weather", "calculate"]


def test_thought_ids_are_unique_in_a_conversation() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO))
    chat.ask("Weather in Oslo?")
    chat.ask("And in Oslo now?")
    assert chat.thoughts[0]["thought_id"] == "plan-2"


def test_thoughts_refer_to_the_ids_returned_by_the_tool() -> None:
    renamed = ("thought", lambda **_: {"thoughtId": "renamed"})
    chat = Chat(think_aloud=renamed)
    chat.ask("Is 20 C in Oslo warmer than 65 F in Bergen?")
    assert chat.thoughts[1]["related_to"] == "renamed"


def test_failed_lookup_is_reported() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO))
    failure = "I could not get an answer from get_weather for Atlantis: No city is called 'Atlantis'; try the English"
    assert chat.ask("Weather in Atlantis?").startswith(failure)
    answer = chat.ask("Compare the weather in Oslo and Atlantis.")
    assert "In Oslo it is 7 °C, light rain." in answer
    assert failure in answer
    assert answer.endswith("So I cannot compare them.")


def test_follow_up_question_uses_earlier_results() -> None:
    chat = Chat(get_weather=weather(Oslo=OSLO, Bergen=BERGEN))
    chat.ask("Weather in Oslo?")
    assert chat.ask("And Bergen?") == "In Bergen it is 48.2 °F (9 °C)."
    assert chat.made == [("get_weather", {"city": "Bergen"})]
    assert chat.ask("Which is warmer?").startswith("Oslo is colder than Bergen, by 2 °C.")
    assert chat.made == []
    assert chat.ask("Is Bergen colder?").startswith("No, Bergen is warmer than Oslo")


def test_three_cities_are_ranked() -> None:
    chat = Chat(get_weather=weather(Oslo="7 C", Bergen="50 F", Rome="25 C", Paris="30 C", Nice="31 C"))
    chat.ask("Weather in Paris and Nice?")
    assert chat.ask("Compare the weather in Rome, Oslo and Bergen.").startswith(
        "The warmest is Rome, and the coldest is Oslo."
    )


def test_weather_without_a_tool_is_not_invented() -> None:
    assert Chat().ask("Weather in Oslo?").startswith("I cannot look up the weather in Oslo")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Is 20 C in Oslo warmer than 65 F in Bergen?",
            "Yes, 20 °C in Oslo is warmer than 65 °F in Bergen, by 1.7 °C. 65 °F is 18.3 °C.",
        ),
        ("Is 20 C colder than 65 F?", "No, 20 °C is warmer than 65 °F, by 1.7 °C. 65 °F is 18.3 °C."),
        ("Is 10 C warmer than 50 F?", "No, 10 °C and 50 °F are equally warm. 50 °F is 10 °C."),
        ("Which is colder, -5 C or 3 C?", "-5 °C is colder than 3 °C, by 8 °C."),
        ("Convert 65 F to Celsius.", "65 °F is 18.3 °C."),
        ("What is 20 degrees celsius in fahrenheit?", "20 °C is 68 °F."),
    ],
)
@pytest.mark.parametrize("tools", [{}, {"think_aloud": THINK}, {"think_aloud": THINK, "calculate": calculator()}])
def test_temperatures_in_the_question_are_compared_with_or_without_tools(
    question: str, answer: str, tools: dict[str, tuple[str, Tool]]
) -> None:
    assert Chat(**tools).ask(question) == answer


def test_conversion_uses_the_calculator_result() -> None:
    chat = Chat(think_aloud=THINK, calculate=calculator(lambda _: {"result": 40.0}))
    answer = chat.ask("Is 20 C in Oslo warmer than 65 F in Bergen?")
    assert answer == "No, 20 °C in Oslo is colder than 65 °F in Bergen, by 20 °C. 65 °F is 40 °C."
    plan, conclusion = chat.thoughts
    assert chat.made[1] == ("calculate", {"expression": "(65 - 32) * 5 / 9"})
    assert (plan["thought_id"], conclusion["related_to"]) == ("plan", chat.ids[1])

    chat = Chat(calculate=("expression", lambda expression: "timed out after 5 s"))
    answer = chat.ask("Is 20 C in Oslo warmer than 65 F in Bergen?")
    assert answer.startswith("Yes, ")
    assert "The calculator failed (timed out after 5 s)" in answer


@pytest.mark.parametrize("tools", [{}, {"calculate": calculator()}, {"think_aloud": THINK, "calculate": calculator()}])
def test_expressions_are_evaluated_and_continued(tools: dict[str, tuple[str, Tool]]) -> None:
    chat = Chat(**tools)
    assert chat.ask("What is 17 * 23?") == "17 * 23 is 391."
    assert chat.ask("And times 2?") == "391 * 2 is 782."
    assert chat.ask("Divide that by 4") == "782 / 4 is 195.5."
    assert ("calculate" in dict(chat.made)) is ("calculate" in tools)


def test_calculator_failure_is_quoted() -> None:
    chat = Chat(calculate=("expression", lambda expression: "Error: division by zero."))
    assert chat.ask("What is 1 / 0?") == "calculate could not work out 1 / 0: Error: division by zero."
    assert Chat().ask("What is 1 / 0?").startswith("I cannot work out 1 / 0: ")


@pytest.mark.parametrize("tools", [{}, {"think_aloud": THINK}])
def test_plan_without_tools_mentions_that(tools: dict[str, tuple[str, Tool]]) -> None:
    answer = Chat(**tools).ask("Plan a weekend in Oslo.")
    assert answer.startswith("Here is a plan for Oslo. Saturday: ")
    assert answer.endswith("I know of Oslo only what you told me.")


def test_plan_depends_on_the_tool_results() -> None:
    for sky, place in [("light rain", "a museum"), ("sunny", "a park")]:
        chat = Chat(think_aloud=THINK, get_weather=weather(Oslo={"temp": 20, "sky": sky}), find_events=weather())
        answer = chat.ask("Plan a weekend in Oslo.")
        assert f"In Oslo it is 20 °C, {sky}." in answer
        assert "I could not get an answer from find_events" in answer
        assert f"{place} in the afternoon" in answer
        assert len(chat.thoughts) == 2


@pytest.mark.parametrize("question", ["Hi there", "Why is the sky blue?", "And red at dusk?", ""])
def test_unsupported_question_is_answered_with_an_introduction(question: str) -> None:
    assert "I am the offline model" in Chat(get_weather=weather()).ask(question)


def test_required_arguments_are_generated() -> None:
    parameters = {
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "lang": {"type": "string", "default": "en"},
            "extra": {"type": "object"},
            "optional": {"type": "string"},
        },
        "required": ["city", "days", "unit", "lang", "extra"],
    }
    conversation = Conversation(
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]}],
            "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
        }
    )
    reply = next(reply for rule in BUILT_IN_RULES if (reply := rule(conversation)) is not None)
    wanted = {"city": "Oslo", "days": 1, "unit": "C", "lang": "en", "extra": {}}
    assert list(reply.calls) == [("get_weather", wanted)]


def test_forbidden_tools_are_not_called() -> None:
    asked = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tool_choice": "none"}
    conversation = Conversation(asked | {"tools": [make_schema("get_weather", "city")]})
    assert conversation.tools == {}


@pytest.mark.parametrize(
    ("text", "cities"),
    [
        ("Weather in Oslo, São Paulo and New York?", ["Oslo", "São Paulo", "New York"]),
        ("Is Oslo's weather like that of Åre?", ["Oslo", "Åre"]),
        ("weather in oslo?", ["Oslo"]),
        ("What is the weather in Celsius?", []),
        ("Compare Oslo and Oslo on Monday", ["Oslo"]),
    ],
)
def test_cities_are_found(text: str, cities: list[str]) -> None:
    assert find_cities(text) == cities


@pytest.mark.parametrize(
    ("result", "temperature"),
    [
        ('{"temperature": 7}', Temperature(7, "C")),
        ('{"now": {"temp_f": 45.5, "city": "Oslo"}}', Temperature(45.5, "F")),
        ('{"celsius": -3, "fahrenheit": 26.6}', Temperature(-3, "C")),
        ('{"units": "fahrenheit", "temperature": 70}', Temperature(70, "F")),
        ('[{"temperature": "12 °C"}]', Temperature(12, "C")),
        ("21.5", Temperature(21.5, "C")),
        ("It is \u22124°C in Oslo", Temperature(-4, "C")),
        ("70 degrees Fahrenheit", Temperature(70, "F")),
        ('{"wind": 5, "raining": true}', None),
        ("true", None),
        ("cloudy", None),
        (None, None),
    ],
)
def test_temperatures_are_parsed_from_results(result: str | None, temperature: Temperature | None) -> None:
    assert parse_temperature(result) == temperature


def test_temperatures_are_parsed_from_questions() -> None:
    stated = find_temperatures("Is 20 C in Oslo warmer than 65°F in New York, or 3 celsius?")
    assert [(each.value, each.unit, city) for each, city in stated] == [
        (20, "C", "Oslo"),
        (65, "F", "New York"),
        (3, "C", None),
    ]


@pytest.mark.parametrize(
    "result", ["timed out after 5 s", '{"error": "no data"}', "ValueError: bad", "It was refused."]
)
def test_failures_are_detected(result: str) -> None:
    assert is_failure(result)


@pytest.mark.parametrize("result", ["It is not cold", "sunny", "0", "null", '{"sky": "clear"}', "7 C, no rain"])
def test_other_results_are_not_failures(result: str) -> None:
    assert not is_failure(result)


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 17 * 23?", "17 * 23"),
        ("(2 + 3) * 4, please", "(2 + 3) * 4"),
        ("How much is 6 times 7?", "6 * 7"),
        ("1,000 divided by 8", "1000 / 8"),
        ("2^10", "2**10"),
        ("3 x 4", "3 * 4"),
        ("In 2024 I was 20", None),
        ("What is 42?", None),
        ("Make 24 from 4 9 10 13.", None),
        ("And times 2?", None),
    ],
)
def test_expressions_are_found(question: str, expression: str | None) -> None:
    assert find_expression(question, None) == expression


@given(st.text(alphabet="0123456789+-*/%(). ^x", max_size=40))
def test_evaluate_returns_a_number_or_raises_an_arithmetic_error(text: str) -> None:
    expression = find_expression(text, 2.0)
    if expression is not None:
        try:
            value = evaluate(expression)
        except ArithmeticError:
            return
        assert isinstance(value, int | float)


@pytest.mark.parametrize(
    ("result", "value"),
    [("391", 391), ("391.0", 391), ('{"result": 2.5}', 2.5), ("The answer is 1,234.", 1234), ("Error 5", None)],
)
def test_numbers_are_parsed_from_results(result: str, value: float | None) -> None:
    assert parse_number(result) == value
