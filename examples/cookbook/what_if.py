"""Change a tool result in a recorded run, and compare what the model does.

Use a fork to debug a decision or to test a fix. The original run stays unchanged, and earlier calls are not repeated.
"""

import asyncio

from rxloop import Agent, MemoryEventLog, ToolCompleteEvent, ToolError, diff, tool
from rxloop.testing import ScriptedModel, call


@tool
async def charge(card: str, amount: int) -> str:
    """Charge a credit card."""
    print(f"charging {card}")
    return f"charged {amount}"


async def main() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(  # or "openai:gpt-5"
        call("charge", "call_1", card="Visa", amount=40), "Thank you for your order.", "Do you have another card?"
    )
    async with Agent(model, tools=[charge], log=log) as agent:
        run = agent.run("I take the lamp for 40 euros.")
        charged = [event async for event in run if isinstance(event, ToolCompleteEvent)]
        print((await run).output)

        declined = {"call_1": ToolError("The card was declined.")}
        fork = await agent.fork(run.task_id, at=charged[0].seq, results=declined)
        print(fork.output)

        difference = await diff(log, run.task_id, fork.task_id)
        for event in difference.first or ():
            print("first difference:", event and event.describe())


asyncio.run(main())

# Output:
# charging Visa
# Thank you for your order.
# Do you have another card?
# first difference: charge = charged 40
# first difference: charge failed: The card was declined.
