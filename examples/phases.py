"""Three phases (analyze, research, design) as separate runs of a conversation. No API key is required.

The phases are limited to 1, 15 and 20 steps. The last step must be an answer. Because all phases belong to the same
conversation, the model receives the messages of earlier phases, and thoughts can refer to earlier thoughts.
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
PROMPTS: dict[Phase, str] = {
    "analyze": "We want to move the orders table to the new cluster without downtime. What do we have to know first?",
    "research": "Find that out.",
    "design": "Now design the move.",
}
HANDBOOK = {
    "size": "40 million rows, 90 GB",
    "writes": "300 a second at noon, 5 at night",
    "change log": "on, kept for three days",
}


@tool
def search_handbook(topic: str) -> str:
    """Look up a topic in the database handbook."""
    return HANDBOOK.get(topic, f"Unknown topic {topic!r}. Available topics: {', '.join(HANDBOOK)}.")


def offline_model() -> ScriptedModel:
    """Create a scripted model. To use a real model, pass a model string such as "zai:glm-4.7" to `run_phases`."""

    def think(id: str, text: str, kind: str = "reasoning", related_to: str | None = None):
        fields = {"related_to": related_to} if related_to is not None else {}
        return call("think_aloud", thought=text, thought_type=kind, thought_id=id, **fields)

    return ScriptedModel(
        # Phase "analyze": answer immediately.
        "We have to know how large it is, how much is written meanwhile, and whether the change log can be read.",
        # The research phase can call several tools concurrently.
        [
            think("plan", "Three questions, none of which waits for another.", "planning"),
            *(call("search_handbook", topic=topic) for topic in HANDBOOK),
        ],
        think("window", "A copy takes five hours; at noon 300 writes a second would be lost.", "observation", "plan"),
        "90 GB, 300 writes a second at noon, and a change log of three days.",
        # Phase "design": the thoughts refer to the previous phase.
        think("copy", "Copy at night, and replay the change log behind the copy.", related_to="window"),
        think("switch", "Lock for a second when the lag is small, and switch.", "decision", "copy"),
        "Copy at night, replay the change log until the lag is small, lock for a second, switch.",
    )


async def run_phases(model: Provider | str, log: MemoryEventLog) -> list[Result]:
    """Run all phases and return their results."""
    results: list[Result] = []
    async with Agent(model, tools=[search_handbook], log=log, instructions="You plan changes of databases.") as agent:
        for phase, prompt in PROMPTS.items():
            run = agent.run(prompt, context_id="move", limits=Limits.phase(phase))
            async for thought in run.pipe(op.of_type(ThoughtStreamEvent)):
                print(f"[{phase}] {thought.thought_type}: {thought.content}")
            try:
                results.append(await run)
            except LimitReached as error:
                print(f"[{phase}] no answer: {error}")
                break
            print(f"[{phase}] = {results[-1].output}\n")
    return results


async def main() -> None:
    """Run all three phases and print the thought tree."""
    log = MemoryEventLog()
    results = await run_phases(offline_model(), log)
    events = [event for result in results for event in await log.read(result.task_id)]
    print(ThoughtGraph.of(events).tree(60))


if __name__ == "__main__":
    asyncio.run(main())
