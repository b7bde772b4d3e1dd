"""Hand a conversation over to another agent.

Use this for a front desk and specialists. Agents with the same log share the conversation, so the specialist knows what
the customer has said.
"""

import asyncio
from dataclasses import dataclass

from rxloop import Agent, EventLog, MemoryEventLog, RunContext, tool
from rxloop.testing import ScriptedModel, call


@dataclass
class Desk:
    agent: str = "front"


@tool(idempotent=True)
async def transfer_to_billing(ctx: RunContext[Desk]) -> str:
    """Transfer questions about invoices to the billing department."""
    ctx.deps.agent = "billing"
    return "The billing department answers after this message."


def make_agents(log: EventLog) -> dict[str, Agent[Desk, str]]:
    front = ScriptedModel(call("transfer_to_billing"), "I am transferring you.")  # or "openai:gpt-5-mini"
    billing = ScriptedModel("You get 20 euros back.", "By Friday.")  # or "openai:gpt-5"
    return {
        "front": Agent(front, name="front", tools=[transfer_to_billing], deps_type=Desk, log=log),
        "billing": Agent(billing, name="billing", deps_type=Desk, log=log),
    }


async def main() -> None:
    agents, desk = make_agents(MemoryEventLog()), Desk()
    for message in ["I paid invoice 7 twice.", "When?"]:
        print(f"   user: {message}")
        answered_by = None
        while answered_by != desk.agent:
            answered_by = desk.agent
            result = await agents[desk.agent].run(message, context_id="ann", deps=desk)
            print(f"{answered_by:>7}: {result.output}")
            message = "Please answer the customer's question."


asyncio.run(main())

# Output:
#    user: I paid invoice 7 twice.
#   front: I am transferring you.
# billing: You get 20 euros back.
#    user: When?
# billing: By Friday.
