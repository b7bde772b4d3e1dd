"""Let the model think in numbered steps that it can revise and branch.

Use sequential thinking for plans and proofs. The session outlives the run, so a later run can continue it.
"""

import asyncio
from typing import Any

from rxloop import Agent, Limits, sequential_thinking
from rxloop.testing import ScriptedCall, ScriptedModel, call


def think(number: int, thought: str, **options: Any) -> ScriptedCall:
    options |= {"thought": thought, "thoughtNumber": number, "totalThoughts": 4, "nextThoughtNeeded": number < 4}
    return call("sequentialthinking", **options)


async def main() -> None:
    model = ScriptedModel(  # or "openai:gpt-5"
        think(1, "Copying the table takes 80 minutes."),
        think(2, "Stop all writes for 80 minutes."),
        think(2, "80 minutes are too long for customers.", isRevision=True, revisesThought=2),
        think(3, "Copy while a trigger repeats all writes.", branchFromThought=1, branchId="trigger"),
        think(4, "Copy, replay the change log, and switch in a second."),
        "Copy the table, replay the change log, and switch.",
    )
    planner = sequential_thinking("migration")
    agent = Agent(model, tools=[planner], thoughts=False, limits=Limits.phase("research"))
    result = await agent.run("How do we move the orders table without downtime?")
    print(result.thoughts.tree())
    print(result.output)
    session = await planner.session()
    print(f"session {session.session_id}: {session.status}, {len(session)} thoughts, branches {list(session.branches)}")


asyncio.run(main())

# Output:
# reasoning 1/4: Copying the table takes 80 minutes.
# ├─ reasoning 2/4: Stop all writes for 80 minutes.
# │  └─ reflection 2/4, revises 2: 80 minutes are too long for customers.
# │     └─ reasoning 4/4: Copy, replay the change log, and switch in a second.
# └─ reasoning 3/4 on trigger: Copy while a trigger repeats all writes.
# Copy the table, replay the change log, and switch.
# session migration: complete, 5 thoughts, branches ['trigger']
