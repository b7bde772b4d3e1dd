"""List the pending approvals of all conversations, and answer them on the next day.

Use this if approvals take hours. The run ends, its state stays in the log, and any process can continue it.
"""

import asyncio

from rxloop import Agent, SqliteEventLog, tool
from rxloop.recorded import list_pending
from rxloop.testing import ScriptedModel, call


@tool(approve="Refund {amount} euros for order {order}?")
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"Refunded {amount:g} euros for {order}."


async def receive_requests() -> None:
    log = SqliteEventLog("support.db")
    model = ScriptedModel(call("refund", order="A-7", amount=20), call("refund", order="B-3", amount=900))
    async with Agent(model, tools=[refund], log=log) as clerk:  # or Agent("openai:gpt-5", ...)
        for customer, order in [("ann", "A-7"), ("bob", "B-3")]:
            result = await clerk.run(f"Order {order} arrived broken.", context_id=customer)
            print(customer, result.state)
    await log.aclose()


async def answer_requests() -> None:
    log = SqliteEventLog("support.db")
    model = ScriptedModel("Your money is on its way.", "We cannot refund this order.")
    async with Agent(model, tools=[refund], log=log) as clerk:
        for pending in await list_pending(log):
            customer, [question] = pending.record.context_id, pending.inputs
            approved = question.call is not None and question.call.arguments["amount"] <= 100  # or ask a person
            print(f"{customer}: {question.prompt} {'yes' if approved else 'no'}")
            result = await clerk.resume(pending.record.task_id, inputs={question.input_id: approved})
            print(f"{customer}: {result.messages[-2].text} {result.output}")
    await log.aclose()


asyncio.run(receive_requests())
asyncio.run(answer_requests())  # tomorrow, in another process

# Output:
# ann input-required
# bob input-required
# ann: Refund 20 euros for order A-7? yes
# ann: Refunded 20 euros for A-7. Your money is on its way.
# bob: Refund 900 euros for order B-3? no
# bob: The call of refund was not approved. We cannot refund this order.
