"""Show text, tool progress and cost in the terminal while an agent works.

Use a loop over the events to draw what happens, and views for computed values. A run can have any number of readers.
"""

import asyncio
from collections.abc import AsyncIterator

from rxloop import Agent, ContentDeltaEvent, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent, Usage, op, tool
from rxloop.providers import Price
from rxloop.testing import ScriptedModel, call, frames, turn


@tool
async def count_stock(warehouses: int) -> AsyncIterator[str | int]:
    """Count the bicycles in all warehouses."""
    for number in range(1, warehouses + 1):
        yield f"counting warehouse {number} of {warehouses}"  # Strings are published as progress.
    yield 12 * warehouses  # The last value is the result.


async def main() -> None:
    model = ScriptedModel(  # or "openai:gpt-5"
        turn(calls=[call("count_stock", warehouses=3)], usage=Usage(input_tokens=4_000, output_tokens=50)),
        turn(frames("-There are -36 bicycles.|", 0.001), usage=Usage(input_tokens=4_100, output_tokens=60)),
        name="bicycles",
    )
    prices = {"bicycles": Price(input=1.25, output=10)}  # dollars per million tokens
    async with Agent(model, tools=[count_stock]).run("How many bicycles are in stock?") as run:
        async for event in run:
            match event:
                case ToolStartEvent(call=started):
                    print(f"-> {started.name} {started.arguments}")
                case ToolProgressEvent(message=message):
                    print(f"   {message}")
                case ToolCompleteEvent(content=content):
                    print(f"<- {content}")
                case ContentDeltaEvent(delta=text):
                    print(text, end="", flush=True)
                case _:
                    pass
        print(f"\n${await run.pipe(op.cost(prices)):.4f}")


asyncio.run(main())

# Output:
# -> count_stock {'warehouses': 3}
#    counting warehouse 1 of 3
#    counting warehouse 2 of 3
#    counting warehouse 3 of 3
# <- 36
# There are 36 bicycles.
# $0.0112
