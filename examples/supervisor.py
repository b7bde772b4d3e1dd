"""A supervisor has three agents work side by side, shows who does what, and sums up."""

from __future__ import annotations

import asyncio

from rxloop import Agent, StatusUpdateEvent, SubtaskEvent, ToolStartEvent, Usage, tool
from rxloop.testing import ScriptedModel, call, turn

STATIONS = {"oslo": (0.15, "18 C and sunny"), "bergen": (0.05, "13 C and rain"), "rome": (0.1, "28 C and clear")}


@tool
async def get_weather(city: str) -> str:
    """Current weather in a city."""
    seconds, report = STATIONS[city]
    await asyncio.sleep(seconds)
    return report


def reporter(city: str) -> Agent:
    """The agent of one city."""
    model = ScriptedModel(
        turn(calls=[call("get_weather", city=city)], usage=Usage(input_tokens=90, output_tokens=10)),
        turn(STATIONS[city][1], usage=Usage(input_tokens=120, output_tokens=8)),
    )
    return Agent(model, name=city, tools=[get_weather])


async def main() -> None:
    """Have all three report, and print what happens as it happens."""
    model = ScriptedModel(
        turn(
            calls=[call(city, prompt="How is the weather?") for city in STATIONS],
            usage=Usage(input_tokens=150, output_tokens=30),
        ),
        turn("Go to Rome.", usage=Usage(input_tokens=220, output_tokens=5)),
    )
    reporters = [reporter(city) for city in STATIONS]
    supervisor = Agent(model, name="supervisor", tools=[each.as_tool() for each in reporters])
    spent: dict[str, int] = {}
    async with supervisor.run("Where is the best weather?") as run:
        async for event in run:
            who = event.agent_path[-1] if event.agent_path else "supervisor"
            match event:
                case ToolStartEvent():
                    print(f"{who:>10} calls {event.name}")
                case SubtaskEvent(state=state) if state != "working":
                    print(f"{event.agent_name:>10} {state}")
                case StatusUpdateEvent(final=True, usage=Usage() as usage) if event.agent_path:
                    spent[who] = usage.total_tokens
                case _:
                    pass
        result = await run
    print(f"{result.output} ({result.usage.total_tokens} tokens, of which {spent})")
    assert result.usage.total_tokens == 405 + sum(spent.values())
    for agent in (supervisor, *reporters):
        await agent.aclose()


if __name__ == "__main__":
    asyncio.run(main())
