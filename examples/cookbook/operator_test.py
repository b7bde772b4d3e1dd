"""Write an operator for the loop, and test its timing in virtual time.

Use operators to change the loop. The tests compare events with marble diagrams, without real delays.
"""

import asyncio
from collections.abc import AsyncIterator

from rxloop import Agent, Operator, RunContext, Signal, ToolRequest, op, tool
from rxloop.testing import ScriptedModel, assert_marbles, call, marbles, virtual_time


def pause_before(name: str, seconds: float) -> Operator:
    """Delay calls of a tool. Users can cancel the run during the delay."""

    @op.on(ToolRequest)
    async def wait(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
        if request.call.name == name:
            ctx.progress(f"{name} starts in {seconds:g} s")
            await asyncio.sleep(seconds)
        yield request

    return wait


@tool
async def send_email(to: str) -> str:
    """Send an email."""
    return f"sent to {to}"


def make_agent() -> Agent[None, str]:
    model = ScriptedModel(call("send_email", to="ann"), "Done.")  # or "openai:gpt-5"
    return Agent(model, tools=[send_email], loop=op.standard(before_tools=[pause_before("send_email", 5)]))


def test_email_is_sent_after_a_pause() -> None:
    with virtual_time():
        # task, working, llm-call, content, progress; tool-start, tool-complete, llm-call, content, final event
        assert_marbles(make_agent().run("Email Ann."), "(twlcp) 5s (sxlcF|)")


def test_run_is_cancelled_during_the_pause() -> None:
    with virtual_time() as time:
        run = make_agent().run("Email Ann.")
        time.at(2, run.cancel)
        assert_marbles(run, "(twlcp) 2s (xF|)")


test_email_is_sent_after_a_pause()  # or pytest
test_run_is_cancelled_during_the_pause()
with virtual_time():
    print(marbles(make_agent().run("Email Ann.")))

# Output:
# (twlc) 5s (sxlcF|)
