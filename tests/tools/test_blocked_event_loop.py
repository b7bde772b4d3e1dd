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
def set_zero_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every step of a tool exceed the limit."""
    monkeypatch.setattr(execution, "MAX_STEP_SECONDS", -1.0)


@pytest.mark.usefixtures("set_zero_limit")
async def test_async_tool_that_blocks_the_event_loop_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def crunch() -> str:
        """Crunch."""
        await asyncio.sleep(0)
        return "crunched"

    with caplog.at_level(logging.WARNING, "rxloop"):
        assert (await Agent(ScriptedModel(call("crunch"), "Done."), tools=[crunch]).run("Go.")).output == "Done."
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "Tool crunch blocked the event loop" in warning
    assert "which runs in a thread" in warning


@pytest.mark.usefixtures("set_zero_limit")
async def test_async_generator_that_blocks_the_event_loop_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def walk() -> AsyncIterator[str]:
        """Walk."""
        yield "a step"
        await asyncio.sleep(0)
        yield "there"

    await Agent(ScriptedModel(call("walk"), "Done."), tools=[walk]).run("Go.")
    assert caplog.text.count("Tool walk blocked the event loop") == 1


def hide_async(function: Callable[..., Awaitable[str]]) -> Callable[..., Any]:
    """Decorate an async function so that it looks synchronous."""

    def plain() -> Any:
        return function()

    return plain


@hide_async
async def grind() -> str:
    """Grind."""
    return "ground"


def validate_slowly(value: str) -> str:
    """Validate an argument, blocking the event loop before the call."""
    return value


@tool
def checked(value: Annotated[str, AfterValidator(validate_slowly)] = "") -> str:
    """Check."""
    return "checked"


class OwnTool:
    """Custom tool class."""

    definition = ToolDefinition("own", "Own.", {"type": "object", "properties": {}})
    timeout = 5.0
    idempotent = False
    approve = False

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        return "own"


@pytest.mark.usefixtures("set_zero_limit")
@pytest.mark.parametrize(
    ("tested_tool", "name"),
    [(tool(name="grind", description="Grind.")(grind), "grind"), (checked, "checked"), (OwnTool(), "own")],
    ids=["hidden by a decorator", "a validator", "a class"],
)
async def test_any_other_blocking_tool_is_reported_once(
    tested_tool: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await Agent(ScriptedModel(call(name), "Done."), tools=[tested_tool]).run("Go.")
    assert caplog.text.count(f"Tool {name} blocked the event loop") == 1


async def test_waiting_tool_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0.001)
        return "waited"

    await Agent(ScriptedModel(call("wait"), "Done."), tools=[wait]).run("Go.")
    assert "blocked the event loop" not in caplog.text


async def test_watched_coroutine_forwards_exceptions_and_its_result() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "cleaned up"
        return "never"

    task = asyncio.ensure_future(execution.watch_steps(work(), "work"))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"
