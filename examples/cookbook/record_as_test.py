"""Turn a real exchange into a test that needs no API key.

Use a recording to detect changes of tools, prompts and operators. The recorded model repeats its answers, the tools run
again, and the test fails at the first difference.
"""

import asyncio

from rxloop import Agent, op, tool
from rxloop.errors import RecordingMismatch
from rxloop.testing import ScriptedModel, call, recorded


@tool
async def get_price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 40 euros"


async def record_exchange() -> None:  # run once, using a real model
    model = ScriptedModel(call("get_price", item="lamp"), "The lamp costs 40 euros.")
    await Agent(model, tools=[get_price]).run("What is the lamp?").pipe(op.record("lamp.jsonl"))


async def test_price_of_the_lamp() -> None:  # in CI
    run = Agent(recorded("lamp.jsonl"), tools=[get_price]).run("What is the lamp?")
    await run.pipe(op.compare("lamp.jsonl"))
    print("unchanged:", (await run).output)


@tool(name="get_price")
async def get_net_price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 33.61 euros"


async def test_changed_tool_is_detected() -> None:
    run = Agent(recorded("lamp.jsonl"), tools=[get_net_price]).run("What is the lamp?")
    try:
        await run.pipe(op.compare("lamp.jsonl"))
    except RecordingMismatch as error:
        print(error)


asyncio.run(record_exchange())
asyncio.run(test_price_of_the_lamp())  # or pytest
asyncio.run(test_changed_tool_is_detected())

# Output:
# unchanged: The lamp costs 40 euros.
# the run differs from the recording at compared event 5 of 8
# recorded  6 tool-complete 1: get_price = lamp: 40 euros
# happened  6 tool-complete 1: get_price = lamp: 33.61 euros
#   result: 'lamp: 40 euros' != 'lamp: 33.61 euros'
#   content: 'lamp: 40 euros' != 'lamp: 33.61 euros'
