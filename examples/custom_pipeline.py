"""A loop of one's own: an operator written with Rx, a guard written without it, and the usual parts around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import reactivex.operators as rx

from rxloop import (
    Agent,
    CheckpointEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    ModelRequest,
    ModelSettings,
    PendingInput,
    RunContext,
    Signal,
    ToolCompleteEvent,
    ToolRequest,
    ToolStartEvent,
    op,
    tool,
)
from rxloop.testing import demo_model

CLOSED = {"Bergen"}
PAID = {"Oslo"}
WEATHER = {"Oslo": (18, "sunny"), "Bergen": (13, "rain"), "Rome": (28, "clear")}


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Current weather in a city, such as "Oslo"."""
    temperature, sky = WEATHER[city]
    return {"temperature": temperature, "unit": "C", "sky": sky}


def to_the_point(signal: Signal) -> Signal:
    """Ask for short answers: a model request is replaced by another one, and everything else passes."""
    if isinstance(signal, ModelRequest):
        return signal.replace(settings=ModelSettings(max_tokens=400).over(signal.settings))
    return signal


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Refuse what is closed, and ask before what costs money. What is yielded takes the request's place."""
    city = request.call.arguments.get("city")
    if city in CLOSED:
        yield request.refuse(f"The station in {city} is closed.")
    elif city in PAID and not await ctx.ask(f"The report from {city} costs 10 cents. Buy it?"):
        yield request.refuse(f"The user does not want to pay for {city}.")
    else:
        yield request


def buy(question: PendingInput) -> bool:
    """Answer the guard. A real program asks a person here, and may take its time: the run waits."""
    return question.prompt.endswith("Buy it?")


async def main() -> None:
    """Run it, and print what the operators did."""
    agent = Agent(
        demo_model(),
        tools=[get_weather],
        thoughts=False,
        loop=[rx.map(to_the_point), op.call_model(), guard, op.run_tools(concurrency=2), op.checkpoint()],
    )
    async with agent, agent.run("What is the weather in Oslo, Bergen and Rome?", on_input=buy) as run:
        async for event in run:
            match event:
                case LLMCallEvent(iteration=iteration):
                    print(f"iteration {iteration}")
                case InputRequiredEvent(input=question):
                    print("  asked   ", question.prompt)
                case InputReceivedEvent(value=value):
                    print("  answered", value)
                case ToolStartEvent(call=call):
                    print("  called  ", call.name, call.arguments)
                case ToolCompleteEvent(call=call, success=success, content=content):
                    print("  result  " if success else "  refused ", f"{call.arguments['city']}: {content}")
                case CheckpointEvent(message_count=count):
                    print(f"  {count} messages now")
                case _:
                    pass
        print((await run).output)


if __name__ == "__main__":
    asyncio.run(main())
