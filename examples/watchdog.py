"""A watchdog: views that watch a run while it goes on, and act on what they see.

One run goes in circles: the model makes the same call again and again, and `op.repeats` stops it before the money is
gone. In another run, the model falls silent in the middle of a sentence: `op.stalled` notices, and another model takes
over. Finished tool calls are not repeated, because their results are in the log.
"""

from __future__ import annotations

import asyncio

import reactivex.operators as rx

from rxloop import Agent, LLMCallEvent, MemoryEventLog, Provider, Result, Run, RunCancelled, ToolStartEvent, op, tool
from rxloop.operators import Repeat, Stall, Stats
from rxloop.testing import ScriptedModel, call, frames, turn

PATIENCE = 0.2
"""How many seconds a model may be silent; for a real one, use twenty."""


async def guarded(agent: Agent[None, str], prompt: str, *spare_models: Provider) -> Result:
    """Return the result of a watched run; `RunCancelled` says why there is none."""
    run = agent.run(prompt)
    for model in spare_models:
        stalls = watch(run)
        try:
            return await run
        except RunCancelled as stopped:
            if not stalls:
                raise
            print(f"  dog   {stopped}: it goes on with {model.name}")
        # The next attempt of the same run, in the same stream. Only what has no answer yet is asked again.
        run = agent.resume(run.task_id, model=model)
    watch(run)
    return await run


def watch(run: Run) -> list[Stall]:
    """Let the dog watch a run. If it cancels the run because the model is silent, the returned list has that stall."""
    stalls: list[Stall] = []

    def break_circle(repeat: Repeat) -> None:
        run.cancel(str(repeat))

    def leave_model(stall: Stall) -> None:
        stalls.append(stall)
        run.cancel(str(stall))

    run.pipe(op.of_type(LLMCallEvent, ToolStartEvent)).subscribe(show)
    run.pipe(op.stats(), rx.last()).subscribe(show)
    # Within the last ten calls: a call made now and then, such as asking for a status, is not a circle.
    run.pipe(op.repeats(3, within=10), rx.take(1)).subscribe(break_circle)
    # Slow tools have their own timeout, and people may take their time; that leaves a silent model.
    run.pipe(op.stalled(PATIENCE), rx.filter(awaits_model), rx.take(1)).subscribe(leave_model)
    return stalls


def awaits_model(stall: Stall) -> bool:
    """Tell whether the run waits for the model."""
    return stall.awaits == "model"


def show(seen: LLMCallEvent | ToolStartEvent | Stats) -> None:
    """Print what happens."""
    match seen:
        case LLMCallEvent():
            print(f"  model {seen.model} is asked with {seen.message_count} messages")
        case ToolStartEvent():
            print(f"  tool  {seen.call.name}({', '.join(map(str, seen.call.arguments.values()))})")
        case Stats():
            print(f"  stats {seen}")


@tool
async def search(query: str) -> str:
    """Search the shop."""
    await asyncio.sleep(0.05)
    return f"nothing found for {query!r}" if "dragon" in query else f"3 offers for {query!r}, from 19 EUR"


async def main() -> None:
    """Watch a run in circles, and one that is stuck."""
    print("A model that goes in circles:")
    dragons = [call("search", query=query) for query in ("dragon", "pet dragon", "dragon", "dragon", "dragon")]
    async with Agent(ScriptedModel(*dragons, name="eager"), tools=[search]) as agent:
        try:
            await guarded(agent, "Buy me a dragon.")
        except RunCancelled as stopped:
            print(f"  dog   {stopped}: it is over")
            # Every call in the partial result has an answer: continue by hand with `agent.run([*messages, "..."])`.
            print(f"  left  {len(stopped.result.messages)} messages")

    print("\nA model that falls silent:")
    sleepy = ScriptedModel(call("search", query="kite"), turn(frames(f"-The cheapest-{'-' * 400}|")), name="sleepy")
    spare = ScriptedModel("The cheapest kite is 19 EUR.", name="spare")
    async with Agent(sleepy, tools=[search], log=MemoryEventLog()) as agent:
        result = await guarded(agent, "What is the cheapest kite?", spare)
    print(f"  answer {result.output}")
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


if __name__ == "__main__":
    asyncio.run(main())
