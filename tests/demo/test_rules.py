from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.demo.question_parser import (
    Temperature,
    cities_in,
    evaluate,
    failed,
    number_of,
    sum_in,
    temperature_of,
    temperatures_in,
)
from rxloop.demo.rules import BUILT_IN
from rxloop.testing import Conversation, Reply

Tool = Callable[..., Any]


def schema(name: str, *arguments: str, required: bool = True) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments) if required else []}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


class Chat:
    """A conversation with the built-in rules, in which tools are carried out as a loop does it."""

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
            self._carry_out(reply)
        raise AssertionError(f"no answer after 6 rounds: {self.made}")

    def _reply(self) -> Reply:
        offered = [schema(name, argument) for name, (argument, _) in self.tools.items()]
        conversation = Conversation({"messages": self.messages, "tools": offered})
        return next(reply for rule in BUILT_IN if (reply := rule(conversation)) is not None)

    def _carry_out(self, reply: Reply) -> None:
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


def test_the_weather_comes_from_the_tool() -> None:
    chat = Chat(get_weather=weather(Oslo=OSLO))
    assert chat.ask("Weather in Oslo?") == "In Oslo it is 7 °C, light rain."
    assert chat.made == [("get_weather", {"city": "Oslo"})]


def test_any_tool_with_a_city_will_do_and_one_named_for_the_weather_goes_first() -> None:
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


def test_the_answer_follows_the_results_that_were_sent() -> None:
    for oslo, opening in [
        (7, "No, Oslo is colder"),
        (9.0, "No, Oslo and Bergen are equally"),
        (30, "Yes, Oslo is war"),
    ]:
        chat = Chat(get_weather=weather(Oslo={"temp": oslo}, Bergen=BERGEN))
        assert chat.ask("Is it warmer in Oslo than in Bergen?").startswith(opening)


def test_thoughts_go_before_and_beside_and_relate_to_calls() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO, Bergen=BERGEN))
    chat.ask("Compare the weather in Oslo and Bergen.")
    plan, oslo, bergen, conclusion = chat.thoughts
    by_city = {arguments.get("city"): call_id for (_, arguments), call_id in zip(chat.made, chat.ids, strict=True)}
    assert [name for name, _ in chat.made][:3] == ["think_aloud", "get_weather", "get_weather"]
    assert oslo["related_to"] == by_city["Oslo"]
    assert bergen["related_to"] == by_city["Bergen"]
    assert conclusion["related_to"] == plan["thought_id"] == "plan"
    assert conclusion["thought_type"] == "decision"


def test_a_difference_is_left_to_the_calculator_and_the_conclusion_follows_from_it() -> None:
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


def test_a_difference_that_the_calculator_cannot_work_out_is_worked_out_without_it() -> None:
    broken = ("expression", lambda expression: "timed out after 5 s")
    chat = Chat(get_weather=weather(Oslo=OSLO, Bergen=BERGEN), calculate=broken)
    answer = chat.ask("What is the temperature difference between Oslo and Bergen?")
    assert answer.startswith("Oslo is colder than Bergen, by 2 °C.")
    assert [name for name, _ in chat.made] == ["get_weather", "get_weather", "calculate"]


def test_thought_ids_stay_unique_over_a_conversation() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO))
    chat.ask("Weather in Oslo?")
    chat.ask("And in Oslo now?")
    assert chat.thoughts[0]["thought_id"] == "plan-2"


def test_the_id_that_the_tool_gave_to_a_thought_is_the_one_referred_to() -> None:
    renamed = ("thought", lambda **_: {"thoughtId": "renamed"})
    chat = Chat(think_aloud=renamed)
    chat.ask("Is 20 C in Oslo warmer than 65 F in Bergen?")
    assert chat.thoughts[1]["related_to"] == "renamed"


def test_a_failed_look_up_is_told() -> None:
    chat = Chat(think_aloud=THINK, get_weather=weather(Oslo=OSLO))
    failure = "I could not get an answer from get_weather for Atlantis: No city is called 'Atlantis'; try the English"
    assert chat.ask("Weather in Atlantis?").startswith(failure)
    answer = chat.ask("Compare the weather in Oslo and Atlantis.")
    assert "In Oslo it is 7 °C, light rain." in answer
    assert failure in answer
    assert answer.endswith("So I cannot compare them.")


def test_a_follow_up_goes_on_from_earlier_results() -> None:
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


def test_without_a_tool_for_it_the_weather_is_not_made_up() -> None:
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
def test_stated_temperatures_are_compared_with_or_without_tools(
    question: str, answer: str, tools: dict[str, tuple[str, Tool]]
) -> None:
    assert Chat(**tools).ask(question) == answer


def test_a_conversion_is_left_to_the_calculator_and_read_from_it() -> None:
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
def test_sums_are_worked_out_and_gone_on_from(tools: dict[str, tuple[str, Tool]]) -> None:
    chat = Chat(**tools)
    assert chat.ask("What is 17 * 23?") == "17 * 23 is 391."
    assert chat.ask("And times 2?") == "391 * 2 is 782."
    assert chat.ask("Divide that by 4") == "782 / 4 is 195.5."
    assert ("calculate" in dict(chat.made)) is ("calculate" in tools)


def test_a_calculator_that_fails_is_quoted() -> None:
    chat = Chat(calculate=("expression", lambda expression: "Error: division by zero."))
    assert chat.ask("What is 1 / 0?") == "calculate could not work out 1 / 0: Error: division by zero."
    assert Chat().ask("What is 1 / 0?").startswith("I cannot work out 1 / 0: ")


@pytest.mark.parametrize("tools", [{}, {"think_aloud": THINK}])
def test_a_plan_without_tools_admits_it(tools: dict[str, tuple[str, Tool]]) -> None:
    answer = Chat(**tools).ask("Plan a weekend in Oslo.")
    assert answer.startswith("Here is a plan for Oslo. Saturday: ")
    assert answer.endswith("I know of Oslo only what you told me.")


def test_a_plan_goes_by_what_the_tools_say() -> None:
    for sky, place in [("light rain", "a museum"), ("sunny", "a park")]:
        chat = Chat(think_aloud=THINK, get_weather=weather(Oslo={"temp": 20, "sky": sky}), find_events=weather())
        answer = chat.ask("Plan a weekend in Oslo.")
        assert f"In Oslo it is 20 °C, {sky}." in answer
        assert "I could not get an answer from find_events" in answer
        assert f"{place} in the afternoon" in answer
        assert len(chat.thoughts) == 2


@pytest.mark.parametrize("question", ["Hi there", "Why is the sky blue?", "And red at dusk?", ""])
def test_anything_else_gets_an_honest_answer(question: str) -> None:
    assert "I am the offline model" in Chat(get_weather=weather()).ask(question)


def test_what_else_a_tool_requires_is_filled_in() -> None:
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
    reply = next(reply for rule in BUILT_IN if (reply := rule(conversation)) is not None)
    wanted = {"city": "Oslo", "days": 1, "unit": "C", "lang": "en", "extra": {}}
    assert list(reply.calls) == [("get_weather", wanted)]


def test_no_tool_is_called_when_the_request_forbids_it() -> None:
    asked = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tool_choice": "none"}
    conversation = Conversation(asked | {"tools": [schema("get_weather", "city")]})
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
    assert cities_in(text) == cities


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
def test_temperatures_are_read_from_results(result: str | None, temperature: Temperature | None) -> None:
    assert temperature_of(result) == temperature


def test_temperatures_are_read_from_questions() -> None:
    stated = temperatures_in("Is 20 C in Oslo warmer than 65°F in New York, or 3 celsius?")
    assert [(each.value, each.unit, city) for each, city in stated] == [
        (20, "C", "Oslo"),
        (65, "F", "New York"),
        (3, "C", None),
    ]


@pytest.mark.parametrize(
    "result", ["timed out after 5 s", '{"error": "no data"}', "ValueError: bad", "It was refused."]
)
def test_failures_are_seen(result: str) -> None:
    assert failed(result)


@pytest.mark.parametrize("result", ["It is not cold", "sunny", "0", "null", '{"sky": "clear"}', "7 C, no rain"])
def test_what_is_no_failure_is_not_taken_for_one(result: str) -> None:
    assert not failed(result)


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
def test_sums_are_found(question: str, expression: str | None) -> None:
    assert sum_in(question, None) == expression


@given(st.text(alphabet="0123456789+-*/%(). ^x", max_size=40))
def test_any_sum_has_a_value_or_an_arithmetic_error(text: str) -> None:
    expression = sum_in(text, 2.0)
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
def test_numbers_are_read_from_results(result: str, value: float | None) -> None:
    assert number_of(result) == value
