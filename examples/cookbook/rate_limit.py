"""Limit how often a tool is called per minute.

Use this for services with a quota. The limit is shared by all runs, and further calls wait. For model calls, use
`limited(model, per_minute=60)`.
"""

import asyncio
from collections.abc import AsyncIterator

from rxloop import Agent, Operator, RunContext, Signal, ToolRequest, op, tool
from rxloop.testing import ScriptedModel, call, virtual_time


def rate_limit(name: str, *, per_minute: int) -> Operator:
    """Delay the calls of a tool to a steady rate."""
    next_start = 0.0

    @op.on(ToolRequest)
    async def delay(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
        nonlocal next_start
        if request.call.name == name:
            now = asyncio.get_running_loop().time()
            start = max(now, next_start)
            next_start = start + 60 / per_minute
            await asyncio.sleep(start - now)
        yield request

    return delay


@tool
async def geocode(city: str) -> str:
    """Return the coordinates of a city."""
    print(f"{asyncio.get_running_loop().time():4.0f} s  {city}")
    return "59.9, 10.7"


async def main() -> None:
    calls = [call("geocode", city=city) for city in ("Oslo", "Bergen", "Bodø")]
    loop = op.standard(before_tools=[rate_limit("geocode", per_minute=6)])
    agents = [Agent(ScriptedModel(calls, "Done."), tools=[geocode], loop=loop) for _ in range(2)]  # or "openai:gpt-5"
    await asyncio.gather(*(agent.run("Where are these cities?") for agent in agents))


with virtual_time() as time:  # Skips the waiting. In your program, use asyncio.run(main()).
    time.run(main())

# Output:
#    0 s  Oslo
#   10 s  Bergen
#   20 s  Bodø
#   30 s  Oslo
#   40 s  Bergen
#   50 s  Bodø
