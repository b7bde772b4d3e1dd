"""Three phases: analyze, research, design. Each is a run, and its answer feeds the next. Needs no key.

Each phase has a limit of steps (1, 15 and 20), and its last step has to be an answer. All are turns of one
conversation: the model reads what came before, and its thoughts may refer to those of an earlier phase.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from rxloop import (
    Agent,
    LimitReached,
    Limits,
    MemoryEventLog,
    Provider,
    Result,
    ThoughtGraph,
    ThoughtStreamEvent,
    op,
    tool,
)
from rxloop.testing import ScriptedModel, call

Phase = Literal["analyze", "research", "design"]
ASKED: dict[Phase, str] = {
    "analyze": "We want to move the orders table to the new cluster without downtime. What do we have to know first?",
    "research": "Find that out.",
    "design": "Now design the move.",
}
KNOWN = {
    "size": "40 million rows, 90 GB",
    "writes": "300 a second at noon, 5 at night",
    "change log": "on, kept for three days",
}


@tool
def look_up(topic: str) -> str:
    """Look something up in the handbook of the database."""
    return KNOWN.get(topic, f"Nothing is known of {topic!r}; there is {', '.join(KNOWN)}.")


def offline_model() -> ScriptedModel:
    """Make a model that plays all three phases; replace it with a model string such as "zai:glm-4.7"."""

    def think(id: str, text: str, kind: str = "reasoning", related_to: str | None = None):
        about = {"related_to": related_to} if related_to is not None else {}
        return call("think_aloud", thought=text, thought_type=kind, thought_id=id, **about)

    return ScriptedModel(
        # analyze: one step, which is the answer.
        "We have to know how large it is, how much is written meanwhile, and whether the change log can be read.",
        # research: look everything up at once.
        [
            think("plan", "Three questions, none of which waits for another.", "planning"),
            *(call("look_up", topic=topic) for topic in KNOWN),
        ],
        think("window", "A copy takes five hours; at noon 300 writes a second would be lost.", "observation", "plan"),
        "90 GB, 300 writes a second at noon, and a change log of three days.",
        # design: refers to a thought of the previous phase.
        think("copy", "Copy at night, and replay the change log behind the copy.", related_to="window"),
        think("switch", "Lock for a second when the lag is small, and switch.", "decision", "copy"),
        "Copy at night, replay the change log until the lag is small, lock for a second, switch.",
    )


async def machine(model: Provider | str, log: MemoryEventLog) -> list[Result]:
    """Go through the phases, and return their results."""
    results: list[Result] = []
    async with Agent(model, tools=[look_up], log=log, instructions="You plan changes of databases.") as agent:
        for phase, asked in ASKED.items():
            run = agent.run(asked, context_id="move", limits=Limits.phase(phase))
            async for thought in run.pipe(op.of_type(ThoughtStreamEvent)):
                print(f"[{phase}] {thought.thought_type}: {thought.content}")
            try:
                results.append(await run)
            except LimitReached as reached:
                print(f"[{phase}] no answer: {reached}")
                break
            print(f"[{phase}] = {results[-1].output}\n")
    return results


async def main() -> None:
    """Run all phases, and draw the thoughts of all of them."""
    log = MemoryEventLog()
    results = await machine(offline_model(), log)
    events = [event for result in results for event in await log.read(result.task_id)]
    print(ThoughtGraph.of(events).tree(60))


if __name__ == "__main__":
    asyncio.run(main())
