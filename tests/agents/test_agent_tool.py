"""Agents used as tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, Limits, ModelSettings, RunContext, ToolCompleteEvent, op, tool
from rxloop.protocol import public_events
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedCall, ScriptedModel, call, turn
from support.nested_agents import (
    collect_checked,
    editor,
    filter_by_path,
    in_virtual_time,
    researcher,
    search,
    turn_with_usage,
)
from support.runs import collect


def tool_results(events: Any) -> list[str]:
    """Return the tool results that the outermost model reads."""
    return [event.content for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]


def test_agent_tool_has_the_name_of_the_agent_and_a_prompt_by_default() -> None:
    tool = researcher(name="the researcher").as_tool()
    assert tool.definition.name == "the_researcher"
    assert "the researcher" in tool.definition.description
    assert list(tool.definition.parameters["properties"]) == ["prompt"]
    assert tool.idempotent


async def test_prompt_function_defines_the_parameters_of_an_agent_tool() -> None:
    def question(topic: str, sources: int = 2) -> str:
        """Finds something out."""
        return f"{topic}, with {sources} sources"

    child = researcher(turn_with_usage("Found."))
    tool = child.as_tool("look_up", prompt=question)
    assert tool.definition.description == "Finds something out."
    assert list(tool.definition.parameters["properties"]) == ["topic", "sources"]
    await editor(tool, turns=[call("look_up", topic="Oslo", sources=3), "Done."]).run("q")
    assert child.model.requests[0].messages[-1].text == "Oslo, with 3 sources"  # type: ignore[attr-defined]


async def test_invalid_arguments_of_an_agent_tool_start_no_run() -> None:
    events = await collect_checked(
        editor(researcher().as_tool("research"), turns=[call("research", wrong=1), "Done."]).run("q")
    )
    assert "prompt" in tool_results(events)[0]
    assert not filter_by_path(events, "researcher")


async def test_typed_answer_of_an_agent_is_the_tool_result() -> None:
    child = Agent(
        ScriptedModel(call("final_answer", value=[1, 2])), name="child", output_type=list[int], output_mode="tool"
    )
    events = await collect_checked(editor(child.as_tool("research")).run("q"))
    (completion,) = [event for event in filter_by_path(events) if isinstance(event, ToolCompleteEvent)]
    assert completion.result == [1, 2]


async def test_deps_of_an_agent_tool_can_be_derived_from_outer_deps() -> None:
    received: list[Any] = []

    async def instructions(ctx: RunContext[int]) -> str:
        received.append(ctx.deps)
        return "Count."

    child = Agent(ScriptedModel("ok"), name="child", deps_type=int, instructions=instructions)

    def count_characters(ctx: RunContext[str]) -> int:
        return len(ctx.deps)

    tool = child.as_tool(deps=count_characters)
    parent = Agent(ScriptedModel(call("child", prompt="x"), "Done."), tools=[tool], deps_type=str)
    await parent.run("q", deps="four")
    assert received == [4]


async def test_nested_agents_are_limited_by_depth() -> None:
    inner = researcher(turn_with_usage("inner"), name="inner")
    middle = researcher(call("inner", prompt="x"), turn_with_usage("M."), name="middle", tools=[inner.as_tool()])
    events = await collect_checked(editor(middle.as_tool("research"), limits=Limits(depth=1)).run("q"))
    (failed,) = [event for event in filter_by_path(events, "middle") if isinstance(event, ToolCompleteEvent)]
    assert not failed.success
    assert "inner was not called: below editor, agents may be nested 1 deep (limits.depth)" in failed.content
    assert not filter_by_path(events, "middle", "inner")


@in_virtual_time
async def test_parallel_agents_are_limited_by_width() -> None:
    @tool(name="search")
    async def slow(question: str) -> str:
        """Search for an hour."""
        await asyncio.sleep(3600)
        return "found"

    tools = [researcher(name=f"r{n}", tools=[slow]).as_tool() for n in range(4)]
    turns = [[call(f"r{n}", prompt="x") for n in range(4)], "Done."]
    events = await collect_checked(editor(*tools, turns=turns, limits=Limits(width=3)).run("q"))
    failed = [text for text in tool_results(events) if "3 agents are at work already (limits.width)" in text]
    assert len(failed) == 1


async def test_events_of_a_hidden_agent_are_not_public() -> None:
    inner = researcher(name="inner")
    child = researcher(call("inner", prompt="secret"), turn_with_usage("secret"), tools=[inner.as_tool()])
    run = editor(child.as_tool("research", hidden=True)).run("q")
    events = await collect_checked(run)
    shown = public_events(events)
    assert filter_by_path(events, "researcher", "inner")
    assert not [event for event in shown if event.agent_path or event.kind == "subtask"]
    assert not [event for event in shown if "secret" in event.to_json(public=True).decode()]
    frames = b"".join([frame async for frame in run.sse(heartbeat=None)])
    assert b"secret" not in frames
    assert b"inner" not in frames
    assert (await run).usage.input_tokens == 30


async def test_as_tool_rejects_invalid_option() -> None:
    with pytest.raises(TypeError, match="did you mean 'limits'"):
        researcher().as_tool(limit=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="limits"):
        researcher().as_tool(limits={"iterations": 3})  # type: ignore[arg-type]


async def test_agent_tool_cannot_be_called_outside_a_run() -> None:
    with pytest.raises(Exception, match="only be called in a run"):
        await researcher().as_tool().call({"prompt": "x"}, RunContext(None))


async def test_connections_of_a_nested_agent_are_closed_with_the_outer_agent() -> None:
    closed: list[str] = []

    class RecordingModel(ScriptedModel):
        async def aclose_made(self) -> None:
            closed.append("made")

    child = Agent(RecordingModel(turn_with_usage("found")), name="child", tools=[search])
    async with editor(child.as_tool("research")) as parent:
        await parent.run("q")
    assert closed == ["made"]


async def test_text_view_is_limited_to_the_outermost_agent_by_default() -> None:
    run = editor(researcher().as_tool("research")).run("q")
    text, nested_text = run.pipe(op.text()), run.pipe(op.text(nested=True))
    await collect(run)
    assert "".join([piece async for piece in text]) == "A page."
    assert "".join([piece async for piece in nested_text]) == "A capital.A page."
    assert "".join([piece async for piece in run.text()]) == "A page."


async def test_for_task_view_has_all_durable_events_of_a_nested_run() -> None:
    run = editor(researcher().as_tool("research")).run("q")
    events = await collect_checked(run)
    child = filter_by_path(events, "researcher")[0].task_id
    received = [event async for event in run.pipe(op.for_task(child))]
    assert [event.seq for event in received] == [
        event.seq for event in filter_by_path(events, "researcher") if event.durable
    ]
    usage = [event async for event in run.pipe(op.usage())]
    assert len(usage) == 2


INCOMPLETE = [
    ("length", "truncated at the output limit of 40 tokens (max_tokens=40)"),
    ("content_filter", "content filter"),
    ("unknown", "did not end normally (finish reason 'weird')"),
]


@pytest.mark.parametrize(("finish", "reason"), INCOMPLETE)
async def test_caller_reads_that_the_answer_of_an_agent_is_incomplete(finish: str, reason: str) -> None:  # P15
    partial = turn("half an ans", finish_reason=finish, raw_finish_reason="weird" if finish == "unknown" else finish)
    inner = Agent(ScriptedModel(partial), name="inner", settings=ModelSettings(max_tokens=40))
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    text = model.requests[1].messages[-1].text
    assert text.startswith("[inner gave no complete answer: ")
    assert text.endswith("half an ans")
    assert reason in text


async def test_caller_reads_that_the_typed_answer_of_an_agent_was_refused() -> None:  # P15
    refusal = turn("I will not.", finish_reason="content_filter", raw_finish_reason="refusal")
    inner = Agent(ScriptedModel(refusal), name="inner", output_type=int)
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    text = model.requests[1].messages[-1].text
    assert "The model refused to answer." in text
    assert "I will not." in text


async def test_caller_reads_that_the_typed_answer_of_an_agent_was_truncated() -> None:  # P15
    inner = Agent(ScriptedModel(*[turn("12", finish_reason="length")] * 3), name="inner", output_type=int)
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    assert "truncated at its token limit" in model.requests[1].messages[-1].text


async def test_note_about_an_incomplete_answer_reaches_only_the_calling_agent() -> None:  # P15
    partial = turn("half an ans", finish_reason="length")
    inner = Agent(ScriptedModel(partial), name="inner")
    middle_model = ScriptedModel(call("inner", prompt="go"), "All of it.")
    middle = Agent(middle_model, name="middle", tools=[inner.as_tool()])
    model = ScriptedModel(call("middle", prompt="go"), "Ok.")
    await Agent(model, tools=[middle.as_tool()]).run("?")

    assert "[inner gave no complete answer: " in middle_model.requests[1].messages[-1].text
    assert model.requests[1].messages[-1].text == "All of it."


async def test_answer_of_a_strategy_that_is_a_truncated_reply_is_truncated() -> None:  # P15
    @strategy
    async def ask_once(run: StrategyRun) -> str:
        return (await run.ask("Think.", branch="once/1")).text

    inner = Agent(ScriptedModel(turn("half an ans", finish_reason="length")), name="inner", strategy=ask_once)
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    assert "[inner gave no complete answer: " in model.requests[1].messages[-1].text


async def test_thoughts_of_a_nested_run_are_drawn_below_its_call() -> None:
    def think(thought: str) -> ScriptedCall:
        return call("think_aloud", thought=thought, thought_type="planning")

    inner = Agent(ScriptedModel([think("Look it up."), "5 C"], "5 C"), name="inner")
    model = ScriptedModel([think("Ask inner."), call("inner", prompt="go")], "Cold.")
    result = await Agent(model, tools=[inner.as_tool()]).run("?")

    assert result.thoughts.tree().splitlines() == [
        "planning t1: Ask inner.",
        '└─ inner call_2: {"prompt":"go"}',
        "   └─ planning t1: Look it up.",
    ]
