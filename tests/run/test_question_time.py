"""Time limits exclude waiting for answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, LimitReached, Limits, RunContext, RunError, Signal, ToolRequest, client_tool, op, tool
from rxloop.stream.scope import TimeScope
from rxloop.testing import ScriptedModel, call, virtual_time

HOUR = 3_600.0


async def answer_after_an_hour(question: Any) -> Any:
    """Answer after an hour."""
    await asyncio.sleep(HOUR)
    return True


@tool(timeout=5)
async def asks(ctx: RunContext[Any], before: float = 0, after: float = 0) -> str:
    """Work before and after a question."""
    await asyncio.sleep(before)
    agreed = await ctx.ask("Really?")
    await asyncio.sleep(after)
    return f"agreed {agreed}"


@tool
async def asks_without_limit(ctx: RunContext[Any]) -> str:
    """Ask."""
    return f"agreed {await ctx.ask('Really?')}"


def tool_texts(result: Any) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


def run_agent(
    agent: Agent[Any, Any], on_input: Any = answer_after_an_hour, limits: Limits | None = None
) -> tuple[Any, float]:
    with virtual_time() as time:
        return time.run(agent.run("Go", on_input=on_input, limits=limits)), time.now


def test_timeout_of_a_tool_does_not_count_a_question() -> None:  # P21
    result, seconds = run_agent(Agent(ScriptedModel(call("asks", before=3, after=1), "Done"), tools=[asks]))

    assert tool_texts(result) == ["agreed True"]
    assert seconds >= HOUR


@pytest.mark.parametrize(("before", "after"), [(6, 0), (3, 3), (0, 6)])
def test_timeout_of_a_tool_counts_its_work_before_and_after_a_question(before: float, after: float) -> None:  # P21
    model = ScriptedModel(call("asks", before=before, after=after), "Done")
    result, seconds = run_agent(Agent(model, tools=[asks]))

    assert "timed out after 5.0 s" in tool_texts(result)[0].replace("after 5 s", "after 5.0 s")
    assert seconds % HOUR == pytest.approx(5, abs=0.1)


def test_timeout_of_a_tool_does_not_count_several_questions() -> None:  # P21
    @tool(timeout=5)
    async def twice(ctx: RunContext[Any]) -> str:
        """Ask twice in parallel."""
        await ctx.ask("One?")
        await asyncio.sleep(2)
        await asyncio.gather(ctx.ask("Two?"), ctx.ask("Three?"))
        await asyncio.sleep(2)
        return "asked"

    result, _ = run_agent(Agent(ScriptedModel(call("twice"), "Done"), tools=[twice]))

    assert tool_texts(result) == ["asked"]


def test_limit_of_a_run_does_not_count_a_question() -> None:  # P21
    agent = Agent(ScriptedModel(call("asks_without_limit"), "Done"), tools=[asks_without_limit])
    result, _ = run_agent(agent, limits=Limits(seconds=10))

    assert result.output == "Done"


def test_limit_of_a_run_counts_the_work_after_a_question() -> None:  # P21
    with virtual_time() as time:
        model = ScriptedModel(call("asks", before=4, after=0), call("asks", before=4), call("asks", before=4), "Done")
        with pytest.raises(LimitReached, match=r"limits\.seconds"):
            time.run(Agent(model, tools=[asks], limits=Limits(seconds=10)).run("Go", on_input=answer_after_an_hour))
        assert time.now == pytest.approx(2 * HOUR + 10, abs=0.5)


@pytest.mark.parametrize("options", [{"approve": True}, {"approve": "Run it?", "timeout": 5}])
def test_limits_do_not_count_an_approval(options: dict[str, Any]) -> None:  # P21
    @tool(**options)
    async def work() -> str:
        """Work."""
        return "worked"

    agent = Agent(ScriptedModel(call("work"), "Done"), tools=[work], limits=Limits(seconds=10))

    assert tool_texts(run_agent(agent)[0]) == ["worked"]


def test_limits_do_not_count_a_question_of_a_guard() -> None:  # P21
    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if await ctx.ask("May it?"):
            yield request

    model = ScriptedModel(call("asks"), "Done")
    agent = Agent(model, tools=[asks], loop=op.standard(before_tools=[guard]), limits=Limits(seconds=10))

    assert tool_texts(run_agent(agent)[0]) == ["agreed True"]


def nest_agents(levels: int, inner: Any, **options: Any) -> Agent[Any, Any]:
    """Nest agents around an asking tool."""
    agent = Agent(ScriptedModel(call("asks", before=1, after=1), "inner done"), name="agent_0", tools=[inner])
    for level in range(1, levels + 1):
        name = f"agent_{level - 1}"
        inner_tool = agent.as_tool(name=name, timeout=10, limits=Limits(seconds=10))
        model = ScriptedModel(call(name, prompt="Go"), f"done {level}")
        agent = Agent(model, name=f"agent_{level}", tools=[inner_tool], **options)
    return agent


@pytest.mark.parametrize("timeout", [None, 10])
def test_limits_around_a_run_inside_a_tool_do_not_count_its_question(timeout: float | None) -> None:  # P21
    inner = nest_agents(0, asks)

    @tool(timeout=timeout)
    async def delegate() -> str:
        """Let another agent work."""
        return (await inner.run("Go", on_input=answer_after_an_hour, limits=Limits(seconds=10))).output

    agent = Agent(ScriptedModel(call("delegate"), "Done"), tools=[delegate])

    assert tool_texts(run_agent(agent, on_input=None, limits=Limits(seconds=10))[0]) == ["inner done"]


async def test_limits_around_a_run_in_another_event_loop_do_not_count_its_question() -> None:  # P21
    async def answer_after_three_seconds(question: Any) -> bool:
        await asyncio.sleep(3)
        return True

    inner = Agent(ScriptedModel(call("asks"), "inner done"), tools=[asks])

    @tool(timeout=2)
    def delegate() -> str:
        """Run another agent in a worker thread."""
        return inner.run_sync("Go", on_input=answer_after_three_seconds).output

    agent = Agent(ScriptedModel(call("delegate"), "Done"), tools=[delegate], limits=Limits(seconds=2.5))

    assert tool_texts(await agent.run("Go")) == ["inner done"]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_limits_of_nested_runs_do_not_count_a_question(levels: int) -> None:  # P21
    result, _ = run_agent(nest_agents(levels, asks), limits=Limits(seconds=10))

    assert tool_texts(result)[-1] == ("inner done" if levels == 1 else f"done {levels - 1}")


@pytest.mark.parametrize("limits", [Limits(seconds=10), Limits()])
def test_question_of_one_call_does_not_pause_the_timeout_of_another(limits: Limits) -> None:  # P21
    @tool(timeout=5)
    async def slow() -> str:
        """Work too long."""
        await asyncio.sleep(50)
        return "never"

    model = ScriptedModel([call("asks"), call("slow")], "Done")
    result, _ = run_agent(Agent(model, tools=[asks, slow], limits=limits))

    assert tool_texts(result)[0] == "agreed True"
    assert "timed out" in tool_texts(result)[1]


def test_time_limit_continues_only_when_both_questions_are_answered() -> None:  # P21
    waits = iter((10.0, 100.0))
    answered: list[float] = []

    async def answer_sequentially(question: Any) -> bool:
        await asyncio.sleep(next(waits))
        answered.append(time.now)
        return True

    model = ScriptedModel([call("asks"), call("asks")], "Done")
    with virtual_time() as time:
        agent = Agent(model, tools=[asks], limits=Limits(seconds=5))
        result = time.run(agent.run("Go", on_input=answer_sequentially))

    assert [round(moment) for moment in answered] == [10, 100]
    assert tool_texts(result) == ["agreed True"] * 2


@pytest.mark.parametrize("levels", [1, 2])
def test_two_nested_runs_can_ask_at_the_same_time(levels: int) -> None:  # P21
    waits = iter((10.0, 100.0))

    async def answer_sequentially(question: Any) -> bool:
        await asyncio.sleep(next(waits))
        return True

    first, second = nest_agents(levels, asks), nest_agents(levels, asks)
    tools = [
        first.as_tool(name="first", timeout=9, limits=Limits(seconds=9)),
        second.as_tool(name="second", timeout=9, limits=Limits(seconds=9)),
    ]
    model = ScriptedModel([call("first", prompt="Go"), call("second", prompt="Go")], "Done")
    with virtual_time() as time:
        agent = Agent(model, name="top", tools=tools, limits=Limits(seconds=9))
        result = time.run(agent.run("Go", on_input=answer_sequentially))

    assert tool_texts(result) == [f"done {levels}"] * 2
    assert time.now >= 100


def test_sequential_questions_of_a_synchronous_function_do_not_count() -> None:  # P21
    prompts: list[str] = []

    def answer_at_terminal(question: Any) -> bool:
        prompts.append(question.prompt)
        return True

    model = ScriptedModel([call("asks"), call("asks")], "Done")
    result, _ = run_agent(Agent(model, tools=[asks]), on_input=answer_at_terminal)

    assert tool_texts(result) == ["agreed True"] * 2
    assert len(prompts) == 2


def test_question_of_a_credential_does_not_count() -> None:  # P21
    @tool(timeout=5)
    async def sign_in(ctx: RunContext[Any]) -> str:
        """Sign in."""
        return f"with {await ctx.require_auth('github')}"

    agent = Agent(ScriptedModel(call("sign_in"), "Done"), tools=[sign_in], limits=Limits(seconds=5))

    assert tool_texts(run_agent(agent)[0]) == ["with True"]


def test_preparation_does_not_count_a_question() -> None:  # P21
    async def instructions(ctx: RunContext[Any]) -> str:
        return f"Agreed: {await ctx.ask('Really?')}"

    model = ScriptedModel("Done")
    agent = Agent(model, instructions=instructions, limits=Limits(preparation=5, seconds=5))

    assert run_agent(agent)[0].output == "Done"
    assert model.requests[0].system[0].text == "Agreed: True"


def test_preparation_is_still_limited_after_a_question() -> None:  # P21
    async def instructions(ctx: RunContext[Any]) -> str:
        await ctx.ask("Really?")
        await asyncio.sleep(50)
        return "never"

    agent = Agent(ScriptedModel("Done"), instructions=instructions, limits=Limits(preparation=5))
    with pytest.raises(RunError, match="took more than 5 s"):
        run_agent(agent)


def test_timeout_of_a_client_tool_still_limits_its_client() -> None:
    @tool
    async def other() -> str:
        """Work."""
        return "worked"

    show = client_tool("show", timeout=5)
    result, _ = run_agent(Agent(ScriptedModel(call("show"), "Done"), tools=[show, other]))

    assert "timed out" in tool_texts(result)[0]


def test_time_limit_continues_after_a_failed_question() -> None:  # P21
    async def fail_after_an_hour(question: Any) -> bool:
        await asyncio.sleep(HOUR)
        raise ValueError("no answer")

    @tool(timeout=5)
    async def patient(ctx: RunContext[Any]) -> str:
        """Ask, then exceed the timeout."""
        try:
            await ctx.ask("Really?")
        except ValueError:
            await asyncio.sleep(50)
        return "never"

    result, seconds = run_agent(
        Agent(ScriptedModel(call("patient"), "Done"), tools=[patient]), on_input=fail_after_an_hour
    )

    assert "timed out" in tool_texts(result)[0]
    assert seconds == pytest.approx(HOUR + 5, abs=0.1)


def test_stall_during_a_question_awaits_the_input() -> None:  # P21
    agent = Agent(ScriptedModel(call("asks_without_limit"), "Done"), tools=[asks_without_limit])

    async def main() -> set[str]:
        async with agent.run("Go", on_input=answer_after_an_hour) as handle:
            return {stall.awaits async for stall in handle.pipe(op.stalled(10))}

    with virtual_time() as time:
        assert time.run(main()) == {"input"}


async def test_cancel_of_a_run_during_a_question_leaves_no_timer() -> None:
    started = asyncio.Event()

    async def never_answer(question: Any) -> bool:
        started.set()
        await asyncio.Event().wait()
        return True

    agent = Agent(ScriptedModel(call("asks"), "Done"), tools=[asks], limits=Limits(seconds=1_000))
    async with agent.run("Go", on_input=never_answer) as handle:
        await started.wait()
        handle.cancel()
    timers: Any = getattr(asyncio.get_running_loop(), "_scheduled", ())
    assert [timer for timer in timers if not timer.cancelled() and "TimeLimit" in repr(timer)] == []


async def test_time_scope_pauses_the_outer_scopes_and_counts_pauses() -> None:
    outer = TimeScope()
    inner, sibling = TimeScope(outer), TimeScope(outer)
    fired: list[str] = []
    for name, scope in (("outer", outer), ("inner", inner), ("sibling", sibling)):
        scope.start_limit(0.02, lambda name=name: fired.append(name))
    with inner.pause():
        with inner.pause():
            await asyncio.sleep(0.05)
        assert fired == ["sibling"]
    await asyncio.sleep(0.05)

    assert sorted(fired) == ["inner", "outer", "sibling"]
