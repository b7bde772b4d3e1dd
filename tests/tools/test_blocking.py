from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from rxloop import Agent, RunContext, tool
from rxloop.pipeline.requests import ToolDefinition
from rxloop.testing import ScriptedModel, call
from rxloop.tools import execution


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a tool takes too long."""
    monkeypatch.setattr(execution, "TOO_LONG", -1.0)


@pytest.mark.usefixtures("soon")
async def test_an_async_tool_that_holds_the_event_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def crunch() -> str:
        """Crunch."""
        await asyncio.sleep(0)
        return "crunched"

    with caplog.at_level(logging.WARNING, "rxloop"):
        assert (await Agent(ScriptedModel(call("crunch"), "Done."), tools=[crunch]).run("Go.")).output == "Done."
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the tool crunch held the event loop" in told
    assert "or do it in a thread" in told


@pytest.mark.usefixtures("soon")
async def test_so_is_an_async_generator(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def walk() -> AsyncIterator[str]:
        """Walk."""
        yield "a step"
        await asyncio.sleep(0)
        yield "there"

    await Agent(ScriptedModel(call("walk"), "Done."), tools=[walk]).run("Go.")
    assert caplog.text.count("the tool walk held the event loop") == 1


def plainly(function: Callable[..., Awaitable[str]]) -> Callable[..., Any]:
    """A decorator that hides that the function is async."""

    def plain() -> Any:
        return function()

    return plain


@plainly
async def grind() -> str:
    """Grind."""
    return "ground"


def slowly(value: str) -> str:
    """A validator of the user's, which holds the loop before the tool is called."""
    return value


@tool
def checked(value: Annotated[str, AfterValidator(slowly)] = "") -> str:
    """Check."""
    return "checked"


class Own:
    """A tool of the user's own class."""

    definition = ToolDefinition("own", "Own.", {"type": "object", "properties": {}})
    timeout = 5.0
    idempotent = False
    approve = False

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        return "own"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("made", "name"),
    [(tool(name="grind", description="Grind.")(grind), "grind"), (checked, "checked"), (Own(), "own")],
    ids=["hidden by a decorator", "a validator", "a class"],
)
async def test_so_is_a_tool_of_any_other_kind(made: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    await Agent(ScriptedModel(call(name), "Done."), tools=[made]).run("Go.")
    assert caplog.text.count(f"the tool {name} held the event loop") == 1


async def test_a_tool_that_waits_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0.001)
        return "waited"

    await Agent(ScriptedModel(call("wait"), "Done."), tools=[wait]).run("Go.")
    assert "held the event loop" not in caplog.text


async def test_what_is_thrown_into_a_tool_arrives_and_what_it_returns_comes_back() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "cleaned up"
        return "never"

    task = asyncio.ensure_future(execution.watched(work(), "work"))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"
