"""Time travel: replay a run, fork it with another tool result, and compare the two."""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, MemoryEventLog, ToolCompleteEvent, ToolError, diff, op, replay, tool
from rxloop.testing import demo_model


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Current weather in a city, such as "Oslo"."""
    await asyncio.sleep(0.2)
    return {"city": city, "temperature": 18, "unit": "C", "sky": "sunny"}


async def main() -> None:
    """Run, replay, look into the middle, fork, and compare."""
    log = MemoryEventLog()
    async with Agent(demo_model(), tools=[get_weather], log=log) as agent:
        result = await agent.run("What is the weather in Oslo?")
        print(f"answer   {result.output}\n")

        # Replay the recorded events four times as fast; no model and no tool is called.
        again = replay(log, result.task_id, speed=4)
        async for event in again.pipe(op.public()):
            print(f"  replay {event.seq:>3} {event.kind}")

        # The run at the moment when the weather was known.
        answers = [event for event in await log.read(result.task_id) if isinstance(event, ToolCompleteEvent)]
        answer = next(event for event in answers if event.name == "get_weather")
        state = await again.state_at(answer.seq)
        print(f"\nthen     {len(state.messages)} messages, {state.usage.total_tokens} tokens, {state.state}")

        # Continue from there as if the weather service had been down. Nothing before that point is asked again.
        down = {f"{answer.step}/{answer.index}": ToolError("The weather service is down.")}
        fork = await agent.fork(result.task_id, at=answer.seq, results=down)
        print(f"fork     {fork.output}\n")

        print(await diff(log, result.task_id, fork.task_id))


if __name__ == "__main__":
    asyncio.run(main())
