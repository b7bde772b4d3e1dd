"""Stable ids of messages."""

from __future__ import annotations

from rxloop import Agent, MemoryEventLog, Message, replay, tool
from rxloop.protocol.events import TaskEvent
from rxloop.testing import ScriptedModel, call


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


async def test_message_ids_are_kept_or_generated_and_equal_in_a_replay() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("look", at="it"), "Blue."), tools=[look], log=log)
    result = await agent.run([Message.user("Hi", message_id="mine"), Message.assistant("Hello."), "Look."])
    run = result.task_id
    ids = [message.message_id for message in result.messages]

    assert ids == ["mine", f"{run}:input:1", f"{run}:input:2", f"{run}:1", f"{run}:1:0", f"{run}:2"]
    assert [message.message_id for message in (await replay(log, run).result()).messages] == ids
    task = (await log.read(run))[0]
    assert isinstance(task, TaskEvent)
    assert [message.message_id for message in task.messages] == ids[:3]


def test_equality_of_messages_ignores_their_ids() -> None:
    assert Message.user("a", message_id="1") == Message.user("a")
    assert hash(Message.user("a", message_id="1")) == hash(Message.user("a"))
    assert Message.user("a") != Message.user("b")
