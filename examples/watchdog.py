"""A watchdog: views that look at a run while it goes on, and act on what they see.

One run goes in circles: the model asks for the same call again and again, and `op.repeats` stops it before the money is
gone. In another one the model falls silent in the middle of a sentence: `op.stalled` notices, and the run goes on with
another model. Its tools are not called again, for what was done is in the log.
"""

from __future__ import annotations

import asyncio

import reactivex.operators as rx

from rxloop import Agent, LLMCallEvent, MemoryEventLog, Provider, Result, Run, RunCancelled, ToolStartEvent, op, tool
from rxloop.operators import Repeat, Stall, Stats
from rxloop.testing import ScriptedModel, call, frames, turn

PATIENCE = 0.2
"""The seconds for which a model may be silent; with a real one it would be twenty."""


async def guarded(agent: Agent[None, str], prompt: str, *spare_models: Provider) -> Result:
    """The result of a run that is watched; `RunCancelled` says why there is none."""
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
    """Let the dog watch a run. If it cancels the run because the model is silent, that stall is in the list."""
    stalls: list[Stall] = []

    def break_circle(repeat: Repeat) -> None:
        run.cancel(str(repeat))

    def leave_model(stall: Stall) -> None:
        stalls.append(stall)
        run.cancel(str(stall))

    run.pipe(op.of_type(LLMCallEvent, ToolStartEvent)).subscribe(show)
    run.pipe(op.stats(), rx.last()).subscribe(show)
    # Within the last ten calls: what is asked for now and then, such as a status, is no circle.
    run.pipe(op.repeats(3, within=10), rx.take(1)).subscribe(break_circle)
    # A slow tool has a timeout of its own, and a person may take their time; what is left is a silent model.
    run.pipe(op.stalled(PATIENCE), rx.filter(awaits_model), rx.take(1)).subscribe(leave_model)
    return stalls


def awaits_model(stall: Stall) -> bool:
    """Whether it is the model that keeps everyone waiting."""
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
    """A run in circles, and one that is stuck."""
    print("A model that goes in circles:")
    dragons = [call("search", query=query) for query in ("dragon", "pet dragon", "dragon", "dragon", "dragon")]
    async with Agent(ScriptedModel(*dragons, name="eager"), tools=[search]) as agent:
        try:
            await guarded(agent, "Buy me a dragon.")
        except RunCancelled as stopped:
            print(f"  dog   {stopped}: it is over")
            # Every call in what there is has an answer: `agent.run([*messages, "Try the zoo."])` goes on by hand.
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
