"""Tools that are offered only when their `enabled=` is true."""

from __future__ import annotations

from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, ToolCompleteEvent, tool
from rxloop.testing import ScriptedModel, call
from support.runs import collect, format_marbles


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_disabled_tool_is_neither_offered_nor_called() -> None:  # L115
    @tool(enabled=lambda ctx: False)
    async def secret() -> str:
        """Not now."""
        return "42"

    model = ScriptedModel(call("secret"), "done")
    events = await collect(Agent(model, tools=[secret, look], thoughts=False).run("Go"))

    assert [definition.name for definition in model.requests[0].tools] == ["look"]
    assert format_marbles(events) == "twlcxklckF"
    (answer,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert "not available now" in answer.content


async def test_enabled_is_evaluated_once_per_request() -> None:
    iterations: list[int] = []

    @tool(enabled=lambda ctx: not iterations.append(ctx.state.iteration))
    async def watch() -> str:
        """Watch."""
        return "seen"

    model = ScriptedModel([call("watch"), call("watch")], call("watch"), "Hi.")
    await Agent(model, tools=[watch]).run("Go.")
    assert iterations == [0, 1, 2]


async def test_offered_tool_is_called_although_it_was_disabled_meanwhile() -> None:
    answers = iter([True, False])

    @tool(enabled=lambda ctx: next(answers))
    async def once() -> str:
        """Once."""
        return "seen"

    model = ScriptedModel([call("once"), call("once")], "Hi.")
    result = await Agent(model, tools=[once], thoughts=False).run("Go.")
    assert [message.text for message in result.messages[2:4]] == ["seen", "seen"]
    assert [len(request.tools) for request in model.requests] == [1, 0]


async def test_resumed_run_evaluates_enabled_again_for_open_calls() -> None:
    answers = iter([True, False, False])

    @tool(enabled=lambda ctx: next(answers))
    async def buy(ctx: RunContext[Any]) -> str:
        """Buy."""
        return str(await ctx.ask("Sure?"))

    agent = Agent(ScriptedModel(call("buy"), "Hi."), tools=[buy], thoughts=False, log=MemoryEventLog())
    paused = await agent.run("Go.")
    result = await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert "not available now" in result.messages[2].text
