"""An assistant that knows a user a week later, and can explain why.

    python examples/memory.py

The models are scripted and the clock is virtual, so the example runs offline. The assistant plans from the notes that
`op.recall` adds to its request.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, TaskEvent, op
from rxloop.memory import Memory, MemoryRecalledEvent
from rxloop.testing import ScriptedModel, call, virtual_time

WEEK = 7 * 24 * 3_600


def plan(request: ModelRequest) -> str:
    """Answer from the recalled notes, as a model would."""
    notes = request.tail[0].text
    travel = "the train" if "by train" in notes else "a plane"
    food = "a vegetarian restaurant" if "vegetarian" in notes else "a steak house"
    return f"Take {travel} to Bergen, and dine in {food}."


async def explain(memory: Memory, log: EventLog, task_id: str, owner: str) -> None:
    """Print the notes that a run has received, and the messages that they are based on."""
    events = await log.read(task_id)
    for note_id in [
        note_id for event in events if isinstance(event, MemoryRecalledEvent) for note_id in event.note_ids
    ]:
        note = await memory.get(owner, note_id)
        if note.kind == "episode":
            continue
        day = datetime.fromtimestamp(note.created / 1000, UTC).date()
        print(f"- {note.text} ({note.kind} of the {note.origin}, {day}, confidence {note.confidence:g})")
        for source in note.sources:
            task, *_ = await log.read(source.rpartition("/")[0])
            assert isinstance(task, TaskEvent)
            print(f"  because {owner} said: {task.messages[0].text!r}")


async def main() -> None:
    log = MemoryEventLog()
    memory = Memory(log)
    remember = call("remember", text="Ann is a vegetarian.", kind="preference")
    model = ScriptedModel(remember, "I will remember that.", "It takes 6.5 hours.", plan)
    loop = op.standard(before_model=[op.recall(memory)])
    agent = Agent(model, log=log, tools=memory.tools(), loop=loop, name="guide")

    # Two conversations. The model remembers the first one, and a reflection in the night summarises both of them.
    await agent.run("I am a vegetarian, please keep that in mind.", owner="ann")
    await agent.run("I always travel by train. How long does Oslo to Bergen take?", owner="ann")
    [message] = await memory.search("ann", "always travel by train", limit=1)
    note = call(
        "write_note", text="Ann travels by train.", kind="preference", sources=[message.note_id], confidence=0.9
    )
    await memory.reflect("ann", model=ScriptedModel(note, "Done."))

    # A week later, in another conversation. Only the owner is the same.
    await asyncio.sleep(WEEK)
    result = await agent.run("Plan a trip: how should I travel, and where can a vegetarian eat?", owner="ann")
    print(result.output)
    print("\nThis is what the assistant knew, and why:")
    await explain(memory, log, result.task_id, "ann")

    # Another user has another memory.
    assert await memory.search("bob", "How does Ann travel?") == []


if __name__ == "__main__":
    with virtual_time() as time:
        time.run(main())
