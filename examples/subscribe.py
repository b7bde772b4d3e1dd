"""Several views of one run: each is a filter over the same events, and the model is asked once for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import reactivex.operators as rx

from rxloop import (
    Agent,
    LLMCallEvent,
    ThoughtGraph,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
    op,
    tool,
)
from rxloop.testing import demo_model


@tool
async def get_weather(city: str) -> dict[str, Any]:
    """Current weather in a city, such as "Oslo"."""
    await asyncio.sleep(0.05)
    return {"city": city, "temperature": 18, "unit": "C", "sky": "sunny"}


def thought(event: ThoughtStreamEvent) -> None:
    """Print each thought that the view lets through."""
    print(f"  thought  {event.thought_id}: {event.content}")


def usage(event: UsageEvent) -> None:
    """Print each usage report."""
    print(f"  usage    {event.input_tokens} tokens in, {event.output_tokens} out")


async def main() -> None:
    """Subscribe, iterate, await, and look back."""
    calls: list[LLMCallEvent] = []
    graphs: list[ThoughtGraph] = []
    rates: list[float] = []
    async with Agent(demo_model(), tools=[get_weather]) as agent, agent.run("Plan a weekend in Oslo.") as run:
        # Views with a callback. The first subscription starts the run; each gets everything from the beginning.
        run.pipe(op.thoughts()).subscribe(thought)
        run.pipe(op.usage()).subscribe(usage)
        run.pipe(op.of_type(LLMCallEvent)).subscribe(calls.append)
        run.pipe(op.thought_graph(), rx.last()).subscribe(graphs.append)
        run.pipe(op.stats(), rx.map(lambda stats: stats.tokens_per_second), rx.last()).subscribe(rates.append)

        # A view to iterate over.
        async for event in run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)):
            match event:
                case ToolStartEvent(call=call):
                    print(f"  call     {call.id} {call.name}")
                case ToolCompleteEvent(call=call, duration=seconds):
                    print(f"  done     {call.id} in {seconds:.2f} s")

        # Late subscribers get everything, too.
        text = "".join([piece async for piece in run.text()])
        result = await run

    print(f"\n{text}\n")
    assert text == result.output
    print(f"{len(calls)} model requests for all of them; {rates[0]:.0f} tokens/s at the end; {graphs[0]}")


if __name__ == "__main__":
    asyncio.run(main())
