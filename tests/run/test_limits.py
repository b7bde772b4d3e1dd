"""The limits of a run: what each of them counts, and how a run ends there."""

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
from support.runs import collect, outcome, repeated, well_formed
from support.step_tools import fails, step, think


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_so_many_iterations_and_no_more(most: int) -> None:  # L71
    model = ScriptedModel(*repeated(["Working.", call("step")], 10))
    run = Agent(model, tools=[step], limits=Limits(iterations=most)).run("Hi")
    events = await collect(run)

    with pytest.raises(LimitReached, match=r"limits\.iterations") as caught:
        await run

    final = events[-1]
    assert isinstance(final, StatusUpdateEvent)
    assert len(model.requests) == most
    assert (final.state, final.reason, final.content) == ("failed", "max_iterations", "Working.")
    assert caught.value.code == "max_iterations"
    assert caught.value.result.content == "Working."
    assert well_formed(caught.value.result.messages)
    check_envelopes(events)


async def test_an_answer_in_the_last_iteration_is_an_answer() -> None:
    model = ScriptedModel(call("step"), "done")

    assert (await Agent(model, tools=[step], limits=Limits(iterations=2)).run("Hi")).output == "done"


@pytest.mark.parametrize("most", [1, 3])
async def test_iterations_in_which_every_tool_failed_have_a_limit(most: int) -> None:  # L72
    model = ScriptedModel(*repeated([call("fails"), call("nothing")], 10))
    result = await outcome(Agent(model, tools=[fails], limits=Limits(tool_failures=most)).run("Hi"))

    assert (result.state, result.reason, len(model.requests)) == ("failed", "tool_failures", most)


async def test_one_success_sets_the_count_of_failures_back() -> None:  # L72
    bad, mixed = call("fails"), [call("fails"), call("step")]
    model = ScriptedModel(bad, bad, mixed, bad, bad, "done")

    assert (await Agent(model, tools=[fails, step]).run("Hi")).output == "done"


async def test_tokens_have_a_limit() -> None:
    used = turn(calls=[call("step")], usage=Usage(input_tokens=40, output_tokens=10))
    model = ScriptedModel(*repeated(used, 10))
    result = await outcome(Agent(model, tools=[step], limits=Limits(tokens=100)).run("Hi"))

    assert (result.reason, len(model.requests), result.usage.total_tokens) == ("tokens", 2, 100)


def test_time_has_a_limit_whatever_the_run_is_doing() -> None:
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
    assert well_formed(result.messages)


async def test_the_limits_of_a_run_go_before_those_of_the_agent() -> None:
    agent = Agent(ScriptedModel(*repeated(call("step"), 9)), tools=[step], limits=Limits(iterations=5))

    result = await outcome(agent.run("Hi", limits=Limits(iterations=2)))

    assert (result.reason, len(agent.model.requests)) == ("max_iterations", 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_model_that_only_thinks_is_told_to_act_and_then_stopped(limit: int) -> None:  # L34, L35, L36
    model = ScriptedModel(*repeated(think(), 20))
    result = await outcome(Agent(model, thoughts=Thoughts(limit=limit)).run("Hi"))

    assert len(model.requests) == limit + 2
    answers = [message.text for message in result.messages if message.role == "tool"]
    assert ["Act now" in answer for answer in answers] == [False] * limit + [True] * 2
    assert (result.state, result.reason) == ("failed", "max_iterations")


async def test_a_model_that_acts_again_may_think_again() -> None:  # L34
    model = ScriptedModel(think(), think(), think(), call("step"), think(), "done")
    result = await Agent(model, tools=[step]).run("Hi")

    assert not any("Act now" in message.text for message in result.messages)


async def test_thinking_counts_as_an_iteration_too() -> None:  # L36
    model = ScriptedModel(*repeated(think(), 20))
    result = await outcome(Agent(model, limits=Limits(iterations=2)).run("Hi"))

    assert (result.reason, len(model.requests)) == ("max_iterations", 2)
