"""This example adds an Rx operator and a guard to the standard loop."""

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

CLOSED_STATIONS = {"Bergen"}
PAID_STATIONS = {"Oslo"}
WEATHER = {"Oslo": (18, "sunny"), "Bergen": (13, "rain"), "Rome": (28, "clear")}


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Return the current weather in a city, for example "Oslo"."""
    temperature, sky = WEATHER[city]
    return {"temperature": temperature, "unit": "C", "sky": sky}


def shorten_answers(signal: Signal) -> Signal:
    """Limit the answer length in model requests, and return other signals unchanged."""
    if isinstance(signal, ModelRequest):
        return signal.replace(settings=ModelSettings(max_tokens=400).merge_defaults(signal.settings))
    return signal


@op.on(ToolRequest)
async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Refuse closed stations, and ask before paying. The yielded signals replace the request."""
    city = request.call.arguments.get("city")
    if city in CLOSED_STATIONS:
        yield request.refuse(f"The station in {city} is closed.")
    elif city in PAID_STATIONS and not await ctx.ask(f"The report from {city} costs 10 cents. Buy it?"):
        yield request.refuse(f"The user does not want to pay for {city}.")
    else:
        yield request


def approve_purchase(question: PendingInput) -> bool:
    """Answer the guard's question. A real program would ask the user."""
    return question.prompt.endswith("Buy it?")


async def main() -> None:
    """Run the agent and print its events."""
    agent = Agent(
        demo_model(),
        tools=[get_weather],
        thoughts=False,
        loop=[rx.map(shorten_answers), op.call_model(), guard, op.run_tools(concurrency=2), op.checkpoint()],
    )
    async with agent, agent.run("What is the weather in Oslo, Bergen and Rome?", on_input=approve_purchase) as run:
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
                    print(f"  {count} messages")
                case _:
                    pass
        print((await run).output)


if __name__ == "__main__":
    asyncio.run(main())
