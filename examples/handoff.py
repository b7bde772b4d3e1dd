"""Hand a conversation over to another agent: the desk finds out who can help, and that agent goes on with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rxloop import Agent, MemoryEventLog, RunContext, Tool, tool
from rxloop.testing import ScriptedModel, call


@dataclass
class Desk:
    """Who has the conversation: what `handoff_to` changes and `converse` reads."""

    agent: Agent[Desk, str]
    handed_over: list[str] = field(default_factory=list)


def handoff_to(agent: Agent[Desk, str], when: str) -> Tool[Desk]:
    """A tool by which a model hands the conversation over to that agent."""

    async def hand_over(ctx: RunContext[Desk]) -> str:
        ctx.deps.agent = agent
        ctx.deps.handed_over.append(agent.name)
        return f"{agent.name} takes over after this message: say so in one sentence, and nothing else."

    # It may be called again after a crash: the conversation is handed over all the same.
    return tool(hand_over, name=f"handoff_to_{agent.name}", description=f"Hand over {when}.", idempotent=True)


async def converse(desk: Desk, context_id: str, message: str) -> str:
    """Say something in the conversation, and go on for as long as it is handed over; the last answer."""
    while True:
        before = desk.agent
        result = await before.run(message, context_id=context_id, deps=desk)
        print(f"{before.name:>8}: {result.output}")
        if desk.agent is before:
            return result.output
        # The next agent reads the whole conversation; this is what it is asked to do with it.
        message = "You have taken over: help with what was asked last."


async def main() -> None:
    """A customer with a question about an invoice."""
    log = MemoryEventLog()
    billing: Agent[Desk, str] = Agent(
        ScriptedModel("Invoice 7 was paid twice. You get 20 euros back.", "By Friday."),
        name="billing",
        deps_type=Desk,
        log=log,
    )
    front: Agent[Desk, str] = Agent(
        ScriptedModel(call("handoff_to_billing"), "Billing will help you."),
        name="front",
        deps_type=Desk,
        tools=[handoff_to(billing, "when it is about an invoice")],
        log=log,
    )
    desk = Desk(front)
    await converse(desk, "anna", "Why did I pay invoice 7 twice?")
    answer = await converse(desk, "anna", "When?")
    assert desk.handed_over == ["billing"]
    assert answer == "By Friday."
    for agent in (front, billing):
        await agent.aclose()
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main())
