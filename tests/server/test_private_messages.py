"""Messages that an agent adds for its model, which clients must not receive."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog, StatusUpdateEvent, TaskEvent
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, MessageAddedEvent
from rxloop.protocol.messages import Message, Usage
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_api
from support.hidden_tools import MARK

CAUSES = ("retry", "tool", "strategy")


async def store_run(log: EventLog, task_id: str, *notes: MessageAddedEvent) -> None:
    """Store a run of ann with a model call, notes and an answer."""
    now = time.time_ns() // 1_000_000
    envelope: dict[str, Any] = {"task_id": task_id, "context_id": "talk", "attempt": 1, "timestamp": now}
    request = LLMCallEvent(
        step="1", iteration=1, model="m", message_count=4, tool_count=0, estimated_input_tokens=9, seq=3, **envelope
    )
    events: list[Event] = [
        TaskEvent(seq=1, messages=[Message.user("Hi")], model="m", agent_name="clerk", owner="ann", **envelope),
        StatusUpdateEvent(seq=2, state="working", **envelope),
        request,
        ContentCompleteEvent(seq=4, step="1", content="Hello.", **envelope),
    ]
    events += [note.model_copy(update={"seq": seq, **envelope}) for seq, note in enumerate(notes, 5)]
    events.append(
        StatusUpdateEvent(
            seq=len(events) + 1, state="completed", final=True, content="Hello.", usage=Usage(), **envelope
        )
    )
    await log.append(task_id, events, expected_seq=0)


@pytest.mark.parametrize("message_id", [None, "note-1"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(
    "path",
    [
        "/contexts/talk/messages",
        "/runs/first/state",
        "/runs/first/export?form=markdown",
        "/runs/second/requests/3",
        "/runs/second/state",
    ],
)
async def test_message_of_the_agent_is_not_public(path: str, kind: str, message_id: str | None, tmp_path: Any) -> None:
    log: EventLog = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "runs.db")
    notes = [MessageAddedEvent(content=f"{MARK} {cause}", cause=cause, message_id=message_id) for cause in CAUSES]
    await store_run(log, "first", *notes, MessageAddedEvent(content="Go on", cause="steering"))
    await store_run(log, "second")
    async with serve_api(Agent(ScriptedModel("Hi."), name="clerk"), log=log) as served:
        async with make_client(served.url) as ann, make_client(served.url, "root-key") as root:
            # The second request uses the stored fold of the conversation.
            public = [await ann.get(path) for _ in range(2)]
            internal = await root.get("/runs/first/state?visibility=all")
    await log.aclose()
    for response in public:
        assert response.status_code == 200
        assert MARK not in response.text
        assert ("Go on" in response.text) == ("second/state" not in path)
    assert all(f"{MARK} {cause}" in internal.text for cause in CAUSES)
