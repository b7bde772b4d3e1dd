import logging
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import tool
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.agent_tools import AgentTools
from rxloop.tools.think_aloud import think_aloud
from rxloop.tools.toolsets import Missing
from support.fake_host import FakeHost


def named(name: str, **options: Any) -> Tool:
    def function(x: int = 0) -> str:
        return name

    return tool(function, name=name, **options)


class Family:
    def __init__(self, *tools: Tool) -> None:
        self.given: Sequence[Tool] = tools
        self.asked: list[RunContext[Any]] = []

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        self.asked.append(ctx)
        return self.given


CTX = FakeHost().context()


def plain(city: str) -> str:
    return city


async def test_tools_are_offered_in_the_order_in_which_they_were_given() -> None:
    family = Family(named("b"), named("c"))
    tools = AgentTools([named("z"), family, plain, think_aloud()])
    assert list((await tools.resolve(CTX)).tools) == ["z", "b", "c", "plain", "think_aloud"]
    assert family.asked == [CTX]
    assert repr(tools) == "<AgentTools z, Family, plain, think_aloud>"


def test_two_plain_tools_of_one_name_are_an_error() -> None:  # L111
    with pytest.raises(ConfigurationError, match="two tools are called 'plain'"):
        AgentTools([plain, named("plain")])


async def test_two_tools_of_one_name_in_one_family_are_an_error_of_that_family() -> None:  # L111
    offered = await AgentTools([Family(named("a"), named("a")), named("b")]).resolve(CTX)
    assert list(offered.tools) == ["b"]
    assert offered.missing == (Missing("Family", "Family has two tools called 'a'"),)


async def test_across_families_the_first_one_stands_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:  # L111
    first, second, third = named("a"), named("a"), named("a")
    tools = AgentTools([Family(first), Family(second), third])
    with caplog.at_level(logging.WARNING, "rxloop"):
        assert (await tools.resolve(CTX)).tools == {"a": first}
        await tools.resolve(CTX)
    assert len(caplog.records) == 2
    assert "tool 'a' of Family is left out" in caplog.records[0].message
    assert "a family before it has one of that name" in caplog.records[1].message


async def test_an_odd_name_of_a_family_costs_only_that_tool(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        definition = type("D", (), {"name": "a b"})()

    family = Family(Odd(), named("fine"))  # pyright: ignore[reportArgumentType]
    with caplog.at_level(logging.WARNING, "rxloop"):
        assert list((await AgentTools([family]).resolve(CTX)).tools) == ["fine"]
    assert "'a b'" in caplog.text


def test_a_tool_object_with_an_odd_name_is_an_error() -> None:
    class Odd:
        definition = type("D", (), {"name": "a b"})()

        async def call(self) -> None: ...

    with pytest.raises(ConfigurationError, match="'a b'"):
        AgentTools([Odd()])  # pyright: ignore[reportArgumentType]


async def test_a_tool_that_is_not_enabled_is_left_out_and_the_model_is_told() -> None:  # L115, L80
    tools = AgentTools([named("wipe", enabled=lambda ctx: False), named("read")])
    offered = (await tools.resolve(CTX)).tools
    assert list(offered) == ["read"]
    assert tools.why_not("wipe", offered) == "The tool 'wipe' is not available now. The available tools are: read."


@pytest.mark.parametrize("name", ["get_wether", "GetWeather", "functions.get_weather", "get-weather"])
def test_an_unknown_tool_is_answered_with_the_nearest_and_all_others(name: str) -> None:  # L79
    assert AgentTools().why_not(name, ["add", "get_weather"]) == (
        f"There is no tool {name!r}. Did you mean 'get_weather'? The available tools are: add, get_weather."
    )


def test_nothing_near_is_named_where_nothing_is_near() -> None:  # L79
    assert AgentTools().why_not("xyz", ["add"]) == "There is no tool 'xyz'. The available tools are: add."
    assert AgentTools().why_not("", ["add"]) == "There is no tool ''. The available tools are: add."


def test_where_no_tools_are_offered_the_model_is_told_to_answer() -> None:  # L16
    assert AgentTools().why_not("think_aloud", []) == (
        "There is no tool 'think_aloud'. No tools are available: answer without them."
    )


async def test_the_same_tools_give_the_identical_definitions() -> None:
    switch = {"on": True}
    tools = AgentTools([named("a"), named("b", enabled=lambda ctx: switch["on"])])
    both = tools.definitions((await tools.resolve(CTX)).tools)
    assert tools.definitions((await tools.resolve(CTX)).tools) is both
    switch["on"] = False
    one = tools.definitions((await tools.resolve(CTX)).tools)
    assert [each.name for each in one] == ["a"]
    switch["on"] = True
    assert tools.definitions((await tools.resolve(CTX)).tools) is both
    assert tools.definitions({}) == ()


async def test_definitions_that_are_made_anew_each_time_are_the_same_when_they_are_equal() -> None:
    family = Family(named("a"))
    tools = AgentTools([family])
    first = tools.definitions((await tools.resolve(CTX)).tools)
    family.given = [named("a")]
    assert tools.definitions((await tools.resolve(CTX)).tools) is first
    family.given = [named("a", description="Other.")]
    assert tools.definitions((await tools.resolve(CTX)).tools) is not first


def test_nothing_is_awaited_where_there_are_no_families() -> None:
    with pytest.raises(StopIteration) as end:
        AgentTools([plain]).resolve(CTX).send(None)
    assert list(end.value.value.tools) == ["plain"]
