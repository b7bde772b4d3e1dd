"""Questions outside tool calls: in guards on model requests and in instructions."""

from collections.abc import AsyncIterator
from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, StatusUpdateEvent, op, tool
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.testing import ScriptedModel, call
from support.runs import collect, copy_first_events


@op.on(ModelRequest)
async def ask_before_model_call(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    if await ctx.ask(f"May I call the model for step {request.step}?"):
        yield request


async def test_question_of_model_request_guard_pauses_the_run_until_answered() -> None:
    # L95, L96
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hello."), log=log, loop=op.standard(before_model=[ask_before_model_call]))
    first = await agent.run("Hi")
    assert first.state == "input-required"
    assert [question.input_id for question in first.pending] == ["1.ask_before_model_call.1"]
    resumed = await agent.resume(first.task_id, inputs={"1.ask_before_model_call.1": True})
    assert resumed.output == "Hello."


async def test_answer_to_a_guard_is_not_used_for_a_question_of_a_tool() -> None:
    answers: list[bool] = []

    @tool(idempotent=True)
    async def wipe(ctx: RunContext[None]) -> str:
        """Deletes everything."""
        answer = await ctx.ask("Really delete all?")
        answers.append(answer)
        return f"wiped={answer}"

    log = MemoryEventLog()
    loop = op.standard(before_model=[ask_before_model_call])
    run = Agent(ScriptedModel(call("wipe"), "end"), tools=[wipe], log=log, loop=loop).run(
        "q", on_input=lambda question: "model" in question.prompt
    )
    events = await collect(run)
    started = next(event.seq for event in events if event.kind == "tool-start")
    truncated_log = await copy_first_events(log, run.task_id, started)
    answers.clear()

    agent = Agent(ScriptedModel("end"), tools=[wipe], log=truncated_log, loop=loop)
    resumed = await agent.resume(run.task_id)
    assert answers == []
    assert [question.prompt for question in resumed.pending] == ["Really delete all?"]


async def test_question_of_instructions_pauses_the_run_before_its_first_request() -> None:
    # L5
    async def instructions(ctx: RunContext[None]) -> str:
        return f"Speak {await ctx.ask('Which language?', str)}."

    model = ScriptedModel("Oui.")
    agent = Agent(model, instructions=instructions, log=MemoryEventLog())
    run = agent.run("q")
    last = (await collect(run))[-1]
    assert isinstance(last, StatusUpdateEvent)
    assert last.final
    assert last.state == "input-required"
    assert not model.requests
    resumed = await agent.resume(run.task_id, inputs={last.pending[0].input_id: "French"})
    assert resumed.output == "Oui."
    assert model.requests[0].system[0].text == "Speak French."


async def test_resumed_run_keeps_its_metadata() -> None:
    metadata: list[dict[str, Any]] = []

    @tool
    async def who(ctx: RunContext[None]) -> str:
        """Return the name of the caller."""
        metadata.append(ctx.metadata)
        return str(await ctx.ask("Go on?"))

    agent = Agent(ScriptedModel(call("who"), "end"), tools=[who], log=MemoryEventLog())
    paused = await agent.run("q", metadata={"user": "ann"})
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert metadata == [{"user": "ann"}, {"user": "ann"}]
