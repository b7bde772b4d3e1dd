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
from rxloop.tools.toolsets import MissingToolset
from support.fake_host import FakeHost


def make_tool(name: str, **options: Any) -> Tool:
    def function(x: int = 0) -> str:
        return name

    return tool(function, name=name, **options)


class FakeToolset:
    def __init__(self, *tools: Tool) -> None:
        self.available: Sequence[Tool] = tools
        self.contexts: list[RunContext[Any]] = []

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        self.contexts.append(ctx)
        return self.available


CTX = FakeHost().context()


def plain(city: str) -> str:
    return city


async def test_tools_are_offered_in_their_configured_order() -> None:
    toolset = FakeToolset(make_tool("b"), make_tool("c"))
    tools = AgentTools([make_tool("z"), toolset, plain, think_aloud()])
    assert list((await tools.resolve(CTX)).tools) == ["z", "b", "c", "plain", "think_aloud"]
    assert toolset.contexts == [CTX]
    assert repr(tools) == "<AgentTools z, FakeToolset, plain, think_aloud>"


def test_two_plain_tools_with_one_name_are_an_error() -> None:  # L111
    with pytest.raises(ConfigurationError, match="two tools are named 'plain'"):
        AgentTools([plain, make_tool("plain")])


async def test_two_tools_with_one_name_in_a_toolset_are_an_error_of_the_toolset() -> None:  # L111
    offered = await AgentTools([FakeToolset(make_tool("a"), make_tool("a")), make_tool("b")]).resolve(CTX)
    assert list(offered.tools) == ["b"]
    assert offered.missing == (
        MissingToolset("FakeToolset", "tool names of FakeToolset must be unique, got 'a' twice"),
    )


async def test_first_toolset_with_a_name_takes_precedence_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:  # L111
    first, second, third = make_tool("a"), make_tool("a"), make_tool("a")
    tools = AgentTools([FakeToolset(first), FakeToolset(second), third])
    with caplog.at_level(logging.WARNING, "rxloop"):
        assert (await tools.resolve(CTX)).tools == {"a": first}
        await tools.resolve(CTX)
    assert len(caplog.records) == 2
    assert "Skipping tool 'a' of FakeToolset" in caplog.records[0].message
    assert "an earlier toolset has a tool of that name" in caplog.records[1].message


async def test_invalid_name_in_a_toolset_affects_only_that_tool(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        definition = type("D", (), {"name": "a b"})()

    toolset = FakeToolset(Odd(), make_tool("fine"))  # pyright: ignore[reportArgumentType]
    with caplog.at_level(logging.WARNING, "rxloop"):
        assert list((await AgentTools([toolset]).resolve(CTX)).tools) == ["fine"]
    assert "'a b'" in caplog.text


def test_tool_object_with_an_invalid_name_is_an_error() -> None:
    class Odd:
        definition = type("D", (), {"name": "a b"})()

        async def call(self) -> None: ...

    with pytest.raises(ConfigurationError, match="'a b'"):
        AgentTools([Odd()])  # pyright: ignore[reportArgumentType]


async def test_disabled_tool_is_omitted_and_reported_to_the_model() -> None:  # L115, L80
    tools = AgentTools([make_tool("wipe", enabled=lambda ctx: False), make_tool("read")])
    offered = (await tools.resolve(CTX)).tools
    assert list(offered) == ["read"]
    assert (
        tools.explain_unavailable("wipe", offered)
        == "The tool 'wipe' is not available now. The available tools are: read."
    )


@pytest.mark.parametrize("name", ["get_wether", "GetWeather", "functions.get_weather", "get-weather"])
def test_unknown_tool_is_answered_with_the_nearest_and_all_names(name: str) -> None:  # L79
    assert AgentTools().explain_unavailable(name, ["add", "get_weather"]) == (
        f"There is no tool {name!r}. Did you mean 'get_weather'? The available tools are: add, get_weather."
    )


def test_no_suggestion_is_made_without_a_similar_name() -> None:  # L79
    assert AgentTools().explain_unavailable("xyz", ["add"]) == "There is no tool 'xyz'. The available tools are: add."
    assert AgentTools().explain_unavailable("", ["add"]) == "There is no tool ''. The available tools are: add."


def test_unknown_tool_without_offered_tools_asks_for_an_answer() -> None:  # L16
    assert AgentTools().explain_unavailable("think_aloud", []) == (
        "There is no tool 'think_aloud'. No tools are available: answer without them."
    )


async def test_equal_tools_have_identical_definitions() -> None:
    switch = {"on": True}
    tools = AgentTools([make_tool("a"), make_tool("b", enabled=lambda ctx: switch["on"])])
    both = tools.definitions((await tools.resolve(CTX)).tools)
    assert tools.definitions((await tools.resolve(CTX)).tools) is both
    switch["on"] = False
    one = tools.definitions((await tools.resolve(CTX)).tools)
    assert [each.name for each in one] == ["a"]
    switch["on"] = True
    assert tools.definitions((await tools.resolve(CTX)).tools) is both
    assert tools.definitions({}) == ()


async def test_new_but_equal_definitions_are_identical() -> None:
    toolset = FakeToolset(make_tool("a"))
    tools = AgentTools([toolset])
    first = tools.definitions((await tools.resolve(CTX)).tools)
    toolset.available = [make_tool("a")]
    assert tools.definitions((await tools.resolve(CTX)).tools) is first
    toolset.available = [make_tool("a", description="Other.")]
    assert tools.definitions((await tools.resolve(CTX)).tools) is not first


def test_resolve_without_toolsets_awaits_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        AgentTools([plain]).resolve(CTX).send(None)
    assert list(end.value.value.tools) == ["plain"]
