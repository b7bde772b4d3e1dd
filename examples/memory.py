"""An assistant that knows a user in a later conversation, and explains how.

    python examples/memory.py

The model is scripted, so the example runs offline. It plans from the notes that `op.recall` adds to its request.
"""

from __future__ import annotations

import asyncio

from rxloop import Agent, MemoryEventLog, ModelRequest, op
from rxloop.memory import Memory
from rxloop.testing import ScriptedModel, call


def plan(request: ModelRequest) -> str:
    """Answer from the recalled notes, as a model would."""
    notes = request.messages[0].text
    travel = "the train" if "by train" in notes else "a plane"
    food = "a vegetarian restaurant" if "vegetarian" in notes else "a steak house"
    return f"Take {travel} to Bergen, and dine in {food}."


async def main() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    remember = call("remember", text="Ann is a vegetarian.", kind="preference")
    model = ScriptedModel(remember, "I will remember that.", "It takes 6.5 hours.", plan)
    loop = op.standard(before_model=[op.recall(memory)])
    agent = Agent(model, log=log, tools=memory.tools(), loop=loop, name="guide")

    # Three conversations. Only the owner is the same.
    await agent.run("I am a vegetarian, please keep that in mind.", owner="ann")
    await agent.run("I always travel by train. How long does Oslo to Bergen take?", owner="ann")
    result = await agent.run("Plan a trip: how should I travel, and where can a vegetarian eat?", owner="ann")
    print(result.output)

    print("\nThis is what the assistant knows, and why:")
    question = "How does Ann travel? Is she a vegetarian?"
    for note in await memory.search("ann", question, limit=3, exclude_context=result.context_id):
        task, *_ = await log.read(note.task_id)
        print(f"- {note.text} ({note.kind} by the {note.origin}, from {task.describe()!r})")

    # Another user has another memory.
    assert await memory.search("bob", "How does Ann travel?") == []


if __name__ == "__main__":
    asyncio.run(main())
