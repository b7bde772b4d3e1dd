"""Questions of those who have no tool call: guards on model requests, instructions."""

from collections.abc import AsyncIterator
from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, StatusUpdateEvent, op, tool
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.testing import ScriptedModel, call
from support.runs import collect, first_events


@op.on(ModelRequest)
async def gate(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    if await ctx.ask(f"May I call the model for step {request.step}?"):
        yield request


async def test_a_guard_on_model_requests_pauses_the_run_and_lets_it_go_on() -> None:
    # L95, L96
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hello."), log=log, loop=op.standard(before_model=[gate]))
    first = await agent.run("Hi")
    assert first.state == "input-required"
    assert [question.input_id for question in first.pending] == ["1.gate.1"]
    again = await agent.resume(first.task_id, inputs={"1.gate.1": True})
    assert again.output == "Hello."


async def test_the_answer_to_a_guard_is_never_taken_for_the_answer_to_a_tool() -> None:
    wiped: list[bool] = []

    @tool(idempotent=True)
    async def wipe(ctx: RunContext[None]) -> str:
        """Deletes everything."""
        agreed = await ctx.ask("Really delete all?")
        wiped.append(agreed)
        return f"wiped={agreed}"

    log = MemoryEventLog()
    loop = op.standard(before_model=[gate])
    run = Agent(ScriptedModel(call("wipe"), "end"), tools=[wipe], log=log, loop=loop).run(
        "q", on_input=lambda question: "model" in question.prompt
    )
    events = await collect(run)
    started = next(event.seq for event in events if event.kind == "tool-start")
    cut = await first_events(log, run.task_id, started)
    wiped.clear()

    agent = Agent(ScriptedModel("end"), tools=[wipe], log=cut, loop=loop)
    resumed = await agent.resume(run.task_id)
    assert wiped == []
    assert [question.prompt for question in resumed.pending] == ["Really delete all?"]


async def test_instructions_that_ask_pause_the_run_before_its_first_request() -> None:
    # L5
    async def instructions(ctx: RunContext[None]) -> str:
        return f"Speak {await ctx.ask('Which language?', str)}."

    model = ScriptedModel("Oui.")
    agent = Agent(model, instructions=instructions, log=MemoryEventLog())
    run = agent.run("q")
    last = (await collect(run))[-1]
    assert isinstance(last, StatusUpdateEvent)
    assert (last.final, last.state) == (True, "input-required")
    assert not model.requests
    again = await agent.resume(run.task_id, inputs={last.pending[0].input_id: "French"})
    assert again.output == "Oui."
    assert model.requests[0].system[0].text == "Speak French."


async def test_a_resumed_run_has_the_metadata_that_it_was_started_with() -> None:
    seen: list[dict[str, Any]] = []

    @tool
    async def who(ctx: RunContext[None]) -> str:
        """Who asks."""
        seen.append(ctx.metadata)
        return str(await ctx.ask("Go on?"))

    agent = Agent(ScriptedModel(call("who"), "end"), tools=[who], log=MemoryEventLog())
    paused = await agent.run("q", metadata={"user": "ann"})
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert seen == [{"user": "ann"}, {"user": "ann"}]
