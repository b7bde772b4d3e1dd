"""An agent as a tool: its name and parameters, what bounds it, and what of it is for clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, Limits, ModelSettings, RunContext, ToolCompleteEvent, op, tool
from rxloop.protocol import public_events
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, turn
from support.nested_agents import checked, editor, in_virtual_time, of, researcher, search, tokens
from support.runs import collect


def answers(events: Any) -> list[str]:
    """What the outermost model reads of its calls."""
    return [event.content for event in of(events) if isinstance(event, ToolCompleteEvent)]


def test_by_default_the_tool_is_called_like_the_agent_and_takes_a_prompt() -> None:
    tool = researcher(name="the researcher").as_tool()
    assert tool.definition.name == "the_researcher"
    assert "the researcher" in tool.definition.description
    assert list(tool.definition.parameters["properties"]) == ["prompt"]
    assert tool.idempotent


async def test_the_prompt_may_be_made_of_parameters_of_its_own() -> None:
    def question(topic: str, sources: int = 2) -> str:
        """Finds something out."""
        return f"{topic}, with {sources} sources"

    child = researcher(tokens("Found."))
    tool = child.as_tool("look_up", prompt=question)
    assert tool.definition.description == "Finds something out."
    assert list(tool.definition.parameters["properties"]) == ["topic", "sources"]
    await editor(tool, turns=[call("look_up", topic="Oslo", sources=3), "Done."]).run("q")
    assert child.model.requests[0].messages[-1].text == "Oslo, with 3 sources"  # type: ignore[attr-defined]


async def test_arguments_that_do_not_fit_begin_no_run() -> None:
    events = await checked(
        editor(researcher().as_tool("research"), turns=[call("research", wrong=1), "Done."]).run("q")
    )
    assert "prompt" in answers(events)[0]
    assert not of(events, "researcher")


async def test_the_answer_of_a_type_is_the_result_as_it_is() -> None:
    child = Agent(
        ScriptedModel(call("final_answer", value=[1, 2])), name="child", output_type=list[int], output_mode="tool"
    )
    events = await checked(editor(child.as_tool("research")).run("q"))
    (done,) = [event for event in of(events) if isinstance(event, ToolCompleteEvent)]
    assert done.result == [1, 2]


async def test_deps_may_be_made_of_those_around() -> None:
    seen: list[Any] = []

    async def instructions(ctx: RunContext[int]) -> str:
        seen.append(ctx.deps)
        return "Count."

    child = Agent(ScriptedModel("ok"), name="child", deps_type=int, instructions=instructions)

    def length(ctx: RunContext[str]) -> int:
        return len(ctx.deps)

    tool = child.as_tool(deps=length)
    parent = Agent(ScriptedModel(call("child", prompt="x"), "Done."), tools=[tool], deps_type=str)
    await parent.run("q", deps="four")
    assert seen == [4]


async def test_agents_are_nested_only_so_deep() -> None:
    inner = researcher(tokens("inner"), name="inner")
    middle = researcher(call("inner", prompt="x"), tokens("M."), name="middle", tools=[inner.as_tool()])
    events = await checked(editor(middle.as_tool("research"), limits=Limits(depth=1)).run("q"))
    (refused,) = [event for event in of(events, "middle") if isinstance(event, ToolCompleteEvent)]
    assert not refused.success
    assert "inner was not called: below editor, agents may be nested 1 deep (limits.depth)" in refused.content
    assert not of(events, "middle", "inner")


@in_virtual_time
async def test_only_so_many_agents_go_on_side_by_side() -> None:
    @tool(name="search")
    async def slow(question: str) -> str:
        """Looks a question up for an hour."""
        await asyncio.sleep(3600)
        return "found"

    tools = [researcher(name=f"r{n}", tools=[slow]).as_tool() for n in range(4)]
    turns = [[call(f"r{n}", prompt="x") for n in range(4)], "Done."]
    events = await checked(editor(*tools, turns=turns, limits=Limits(width=3)).run("q"))
    refused = [text for text in answers(events) if "3 agents are at work already (limits.width)" in text]
    assert len(refused) == 1


async def test_what_a_hidden_agent_does_reaches_no_client() -> None:
    inner = researcher(name="inner")
    child = researcher(call("inner", prompt="secret"), tokens("secret"), tools=[inner.as_tool()])
    run = editor(child.as_tool("research", hidden=True)).run("q")
    events = await checked(run)
    shown = public_events(events)
    assert of(events, "researcher", "inner")
    assert not [event for event in shown if event.agent_path or event.kind == "subtask"]
    assert not [event for event in shown if "secret" in event.to_json(public=True).decode()]
    frames = b"".join([frame async for frame in run.sse(heartbeat=None)])
    assert b"secret" not in frames
    assert b"inner" not in frames
    assert (await run).usage.input_tokens == 30


async def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'limits'"):
        researcher().as_tool(limit=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="limits"):
        researcher().as_tool(limits={"iterations": 3})  # type: ignore[arg-type]


async def test_outside_a_run_of_an_agent_it_cannot_be_called() -> None:
    with pytest.raises(Exception, match="in a run only"):
        await researcher().as_tool().call({"prompt": "x"}, RunContext(None))


async def test_the_connections_of_a_nested_agent_are_closed_with_the_agent_around_it() -> None:
    closed: list[str] = []

    class Closing(ScriptedModel):
        async def aclose_made(self) -> None:
            closed.append("made")

    child = Agent(Closing(tokens("found")), name="child", tools=[search])
    async with editor(child.as_tool("research")) as parent:
        await parent.run("q")
    assert closed == ["made"]


async def test_text_is_that_of_the_outermost_agent_unless_all_is_asked_for() -> None:
    run = editor(researcher().as_tool("research")).run("q")
    text, every = run.pipe(op.text()), run.pipe(op.text(nested=True))
    await collect(run)
    assert "".join([piece async for piece in text]) == "A page."
    assert "".join([piece async for piece in every]) == "A capital.A page."
    assert "".join([piece async for piece in run.text()]) == "A page."


async def test_views_of_one_task_have_what_the_fold_of_that_task_needs() -> None:
    run = editor(researcher().as_tool("research")).run("q")
    events = await checked(run)
    child = of(events, "researcher")[0].task_id
    seen = [event async for event in run.pipe(op.for_task(child))]
    assert [event.seq for event in seen] == [event.seq for event in of(events, "researcher") if event.durable]
    usage = [event async for event in run.pipe(op.usage())]
    assert len(usage) == 2


INCOMPLETE = [
    ("length", "truncated at the output limit of 40 tokens (max_tokens=40)"),
    ("content_filter", "content filter"),
    ("unknown", "did not end normally (finish reason 'weird')"),
]


@pytest.mark.parametrize(("finish", "why"), INCOMPLETE)
async def test_caller_reads_that_the_answer_of_an_agent_is_incomplete(finish: str, why: str) -> None:  # P15
    half = turn("half an ans", finish_reason=finish, raw_finish_reason="weird" if finish == "unknown" else finish)
    inner = Agent(ScriptedModel(half), name="inner", settings=ModelSettings(max_tokens=40))
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    text = model.requests[1].messages[-1].text
    assert text.startswith("[inner gave no complete answer: ")
    assert text.endswith("half an ans")
    assert why in text


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


async def test_note_about_an_incomplete_answer_reaches_the_agent_that_called_and_not_beyond() -> None:  # P15
    half = turn("half an ans", finish_reason="length")
    inner = Agent(ScriptedModel(half), name="inner")
    middle_model = ScriptedModel(call("inner", prompt="go"), "All of it.")
    middle = Agent(middle_model, name="middle", tools=[inner.as_tool()])
    model = ScriptedModel(call("middle", prompt="go"), "Ok.")
    await Agent(model, tools=[middle.as_tool()]).run("?")

    assert "[inner gave no complete answer: " in middle_model.requests[1].messages[-1].text
    assert model.requests[1].messages[-1].text == "All of it."


async def test_answer_of_a_strategy_that_is_a_truncated_reply_is_truncated() -> None:  # P15
    @strategy
    async def once(run: StrategyRun) -> str:
        return (await run.ask("Think.", branch="once/1")).text

    inner = Agent(ScriptedModel(turn("half an ans", finish_reason="length")), name="inner", strategy=once)
    model = ScriptedModel(call("inner", prompt="go"), "Ok.")
    await Agent(model, tools=[inner.as_tool()]).run("?")

    assert "[inner gave no complete answer: " in model.requests[1].messages[-1].text
