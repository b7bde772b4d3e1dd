"""This example uses views to detect runs that are stuck.

In the first run, the model repeats a tool call. The watchdog detects this with `op.repeats` and cancels the run. In the
second run, the model stops responding in the middle of a sentence. The watchdog detects this with `op.stalled` and
resumes the run with another model. Completed tool calls are not repeated because their results are in the log.
"""

from __future__ import annotations

import asyncio

import reactivex.operators as rx

from rxloop import Agent, LLMCallEvent, MemoryEventLog, Provider, Result, Run, RunCancelled, ToolStartEvent, op, tool
from rxloop.operators import Repeat, Stall, Stats
from rxloop.testing import ScriptedModel, call, frames, turn

MAX_SILENCE = 0.2
"""Maximum silence of a model in seconds. For real models, use about 20."""


async def run_with_watchdog(agent: Agent[None, str], prompt: str, *spare_models: Provider) -> Result:
    """Run an agent and replace silent models with spare models.

    Raises:
        RunCancelled: The watchdog cancelled the run without resuming it.
    """
    run = agent.run(prompt)
    for model in spare_models:
        stalls = watch(run)
        try:
            return await run
        except RunCancelled as error:
            if not stalls:
                raise
            print(f"  dog   {error}; resuming with {model.name}")
        # Start another attempt of the same run. Completed calls are not repeated.
        run = agent.resume(run.task_id, model=model)
    watch(run)
    return await run


def watch(run: Run) -> list[Stall]:
    """Watch a run. When the model is silent, the stall is added to the returned list and the run is cancelled."""
    stalls: list[Stall] = []

    def cancel_loop(repeat: Repeat) -> None:
        run.cancel(str(repeat))

    def cancel_silent_run(stall: Stall) -> None:
        stalls.append(stall)
        run.cancel(str(stall))

    run.pipe(op.of_type(LLMCallEvent, ToolStartEvent)).subscribe(show)
    run.pipe(op.stats(), rx.last()).subscribe(show)
    # Limit this to the last ten calls, because tools such as status checks are called repeatedly.
    run.pipe(op.repeats(3, within=10), rx.take(1)).subscribe(cancel_loop)
    # Ignore stalls caused by tools and people. Tools have their own timeouts.
    run.pipe(op.stalled(MAX_SILENCE), rx.filter(awaits_model), rx.take(1)).subscribe(cancel_silent_run)
    return stalls


def awaits_model(stall: Stall) -> bool:
    """True if the run is waiting for the model."""
    return stall.awaits == "model"


def show(item: LLMCallEvent | ToolStartEvent | Stats) -> None:
    """Print calls and statistics."""
    match item:
        case LLMCallEvent():
            print(f"  model {item.model} called with {item.message_count} messages")
        case ToolStartEvent():
            print(f"  tool  {item.call.name}({', '.join(map(str, item.call.arguments.values()))})")
        case Stats():
            print(f"  stats {item}")


@tool
async def search(query: str) -> str:
    """Search the shop."""
    await asyncio.sleep(0.05)
    return f"nothing found for {query!r}" if "dragon" in query else f"3 offers for {query!r}, from 19 EUR"


async def main() -> None:
    """Run the watchdog with two misbehaving models."""
    print("Repeated call:")
    dragons = [call("search", query=query) for query in ("dragon", "pet dragon", "dragon", "dragon", "dragon")]
    async with Agent(ScriptedModel(*dragons, name="eager"), tools=[search]) as agent:
        try:
            await run_with_watchdog(agent, "Buy me a dragon.")
        except RunCancelled as error:
            print(f"  dog   {error}; run cancelled")
            # All calls in these messages have results, so you can continue with `agent.run([*messages, "..."])`.
            print(f"  result has {len(error.result.messages)} messages")

    print("\nSilent model:")
    sleepy = ScriptedModel(call("search", query="kite"), turn(frames(f"-The cheapest-{'-' * 400}|")), name="sleepy")
    spare = ScriptedModel("The cheapest kite is 19 EUR.", name="spare")
    async with Agent(sleepy, tools=[search], log=MemoryEventLog()) as agent:
        result = await run_with_watchdog(agent, "What is the cheapest kite?", spare)
    print(f"  answer {result.output}")
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


if __name__ == "__main__":
    asyncio.run(main())
