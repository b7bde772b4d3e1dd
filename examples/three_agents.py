"""Three agents at once in one event loop, each with its own stream."""

from __future__ import annotations

import asyncio

from rxloop import Agent, Result, ThoughtStreamEvent, ToolCompleteEvent, tool
from rxloop.testing import demo_model

STATIONS = {"Oslo": (0.15, "18 C and sunny"), "Bergen": (0.05, "13 C and rain"), "Rome": (0.1, "28 C and clear")}


@tool
async def get_weather(city: str) -> str:
    """Current weather in a city, such as "Oslo"."""
    seconds, report = STATIONS[city]
    await asyncio.sleep(seconds)
    return f"{report} in {city}"


async def watch(agent: Agent, question: str) -> Result:
    """Print the stream of one run after the name of its agent, and return the result."""
    tasks: set[str] = set()
    run = agent.run(question)
    async for event in run.events:
        tasks.add(event.task_id)
        match event:
            case ThoughtStreamEvent(content=thought):
                print(f"{agent.name:>6}  thinks: {thought}")
            case ToolCompleteEvent(content=content) if event.name == "get_weather":
                print(f"{agent.name:>6}  reads: {content}")
            case _:
                pass
    assert tasks == {run.task_id}, "a stream has only the events of its own run"
    return await run


async def main() -> None:
    """Run all three, and compare."""
    model = demo_model()
    agents = [Agent(model, name=city, tools=[get_weather]) for city in STATIONS]
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(watch(agent, f"What is the weather in {agent.name}?")) for agent in agents]
    for agent, run in zip(agents, runs, strict=True):
        result = run.result()
        print(f"{agent.name:>6}  answers: {result.output} ({result.usage.total_tokens} tokens)")
        await agent.aclose()


if __name__ == "__main__":
    asyncio.run(main())
