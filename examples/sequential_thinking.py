"""An agent that thinks in numbered steps, revises a wrong step, and tries a second way. Needs no key."""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, ThoughtStreamEvent, op, sequential_thinking
from rxloop.testing import ScriptedCall, ScriptedModel, call


def offline_model() -> ScriptedModel:
    """Make a model that plays a planner; replace it with a model string such as "zai:glm-4.7"."""

    def think(number: int, text: str, **more: Any) -> ScriptedCall:
        given = {"thought": text, "thoughtNumber": number, "totalThoughts": 5, "nextThoughtNeeded": number < 5}
        return call("sequentialthinking", **given, **more)

    return ScriptedModel(
        think(1, "The table has 40 million rows; the service may not stop. First: copy it, then switch."),
        think(2, "Copy at night: at 5,000 rows a second it takes 80 minutes."),
        think(3, "Thought 2 forgot the writes of those 80 minutes. They must reach the copy too.", isRevision=True,
              revisesThought=2),
        think(3, "One way: a trigger that writes to both tables.", branchFromThought=2, branchId="trigger"),
        think(4, "A trigger slows every write by a third; too much at noon.", branchId="trigger"),
        think(3, "Another way: replay the change log behind the copy.", branchFromThought=2, branchId="change-log"),
        think(4, "It lags two seconds, costs the writers nothing, and can be stopped.", branchId="change-log"),
        think(5, "The change log wins: copy, replay until the lag is small, lock for a second, switch."),
        "Copy the table, replay the change log behind it, and switch under a lock of one second.",
    )  # fmt: skip


async def main() -> None:
    """Think, and print each thought as it comes and the tree at the end."""
    planner = sequential_thinking("planner")
    async with Agent(offline_model(), tools=[planner], thoughts=False) as agent:
        run = agent.run("How do we move the orders table to the new cluster without downtime?")
        async for thought in run.pipe(op.of_type(ThoughtStreamEvent)):
            place = thought.session
            assert place is not None
            line = f"{place.number}/{place.total}" + (f" on {place.branch_id}" if place.branch_id else "")
            print(f"[{line}{f', revises {place.revises}' if place.revises else ''}] {thought.content}")
        result = await run
    print(f"\n{result.output}\n\n{result.thoughts.tree(60)}\n")
    session = await planner.session()
    print(f"The session {session.session_id!r} is {session.status}: {len(session)} thoughts,", end=" ")
    print(f"branches {', '.join(session.branches)}.")


if __name__ == "__main__":
    asyncio.run(main())
