"""Run limits."""

import asyncio

import pytest

from rxloop import (
    Agent,
    LimitReached,
    Limits,
    StatusUpdateEvent,
    Thoughts,
    Usage,
    tool,
)
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.run_checks import check_envelopes
from support.runs import collect, is_well_formed, outcome, repeat_turn
from support.step_tools import fails, step, think


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_run_fails_at_the_limit_of_iterations(limit: int) -> None:  # L71
    model = ScriptedModel(*repeat_turn(["Working.", call("step")], 10))
    run = Agent(model, tools=[step], limits=Limits(iterations=limit)).run("Hi")
    events = await collect(run)

    with pytest.raises(LimitReached, match=r"limits\.iterations") as caught:
        await run

    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert len(model.requests) == limit
    assert (final.state, final.reason) == ("failed", "max_iterations")
    assert final.content == "Working."
    assert caught.value.code == "max_iterations"
    assert caught.value.result.content == "Working."
    assert is_well_formed(caught.value.result.messages)
    check_envelopes(events)


async def test_answer_in_the_last_iteration_completes_the_run() -> None:
    model = ScriptedModel(call("step"), "done")

    assert (await Agent(model, tools=[step], limits=Limits(iterations=2)).run("Hi")).output == "done"


@pytest.mark.parametrize("limit", [1, 3])
async def test_run_fails_at_the_limit_of_failed_iterations(limit: int) -> None:  # L72
    model = ScriptedModel(*repeat_turn([call("fails"), call("nothing")], 10))
    result = await outcome(Agent(model, tools=[fails], limits=Limits(tool_failures=limit)).run("Hi"))

    assert (result.state, result.reason) == ("failed", "tool_failures")
    assert len(model.requests) == limit


async def test_successful_call_resets_the_count_of_tool_failures() -> None:  # L72
    failing, partly_failing = call("fails"), [call("fails"), call("step")]
    model = ScriptedModel(failing, failing, partly_failing, failing, failing, "done")

    assert (await Agent(model, tools=[fails, step]).run("Hi")).output == "done"


async def test_run_fails_at_the_limit_of_tokens() -> None:
    answer = turn(calls=[call("step")], usage=Usage(input_tokens=40, output_tokens=10))
    model = ScriptedModel(*repeat_turn(answer, 10))
    result = await outcome(Agent(model, tools=[step], limits=Limits(tokens=100)).run("Hi"))

    assert result.reason == "tokens"
    assert len(model.requests) == 2
    assert result.usage.total_tokens == 100


def test_run_times_out_during_a_tool_call() -> None:
    @tool
    async def slow() -> str:
        """Never comes back."""
        await asyncio.sleep(3600)
        return "late"

    with virtual_time() as time:
        agent = Agent(ScriptedModel(call("slow")), tools=[slow], limits=Limits(seconds=2))
        result = time.run(outcome(agent.run("Hi")))
        assert time.now == 2

    assert (result.state, result.reason) == ("failed", "timeout")
    assert is_well_formed(result.messages)


async def test_limits_of_run_override_limits_of_agent() -> None:
    agent = Agent(ScriptedModel(*repeat_turn(call("step"), 9)), tools=[step], limits=Limits(iterations=5))

    result = await outcome(agent.run("Hi", limits=Limits(iterations=2)))

    assert result.reason == "max_iterations"
    assert len(agent.model.requests) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 3])
async def test_model_that_only_thinks_is_asked_to_act_and_then_stopped(limit: int) -> None:  # L34, L35, L36
    model = ScriptedModel(*repeat_turn(think(), 20))
    result = await outcome(Agent(model, thoughts=Thoughts(limit=limit)).run("Hi"))

    assert len(model.requests) == limit + 2
    answers = [message.text for message in result.messages if message.role == "tool"]
    assert ["Act now" in answer for answer in answers] == [False] * limit + [True] * 2
    assert (result.state, result.reason) == ("failed", "max_iterations")


async def test_tool_call_resets_the_limit_of_thoughts() -> None:  # L34
    model = ScriptedModel(think(), think(), think(), call("step"), think(), "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert not any("Act now" in message.text for message in result.messages)


async def test_thought_counts_as_an_iteration() -> None:  # L36
    model = ScriptedModel(*repeat_turn(think(), 20))
    result = await outcome(Agent(model, limits=Limits(iterations=2)).run("Hi"))

    assert result.reason == "max_iterations"
    assert len(model.requests) == 2
