"""Long runs in the conversations of all protocols, which are read in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
import uuid6

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.protocol.events import CustomEvent, Event, MessageAddedEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.server import a2a, agui, openai_api, ui_stream
from rxloop.server.a2a.task_fold import MAX_HISTORY
from rxloop.server.core.computations import Computations
from rxloop.server.ui_messages.frames import assemble_message
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_app

EVENTS = 2_000
PART = 200
"""Maximum number of events that are processed at once."""

CONNECT = {
    "threadId": "c",
    "runId": "r",
    "state": {},
    "messages": [],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
REQUESTS: dict[str, tuple[Callable[..., Any], str, str, Any]] = {
    "ui_stream": (ui_stream, "GET", "/api/chat/c", None),
    "openai": (openai_api, "GET", "/v1/responses/{run}", None),
    "openai items": (openai_api, "GET", "/v1/responses/{run}/input_items", None),
    "a2a": (a2a, "GET", "/tasks/{run}", None),
    "a2a list": (a2a, "GET", "/tasks", None),
    "agui": (agui, "POST", "/connect", CONNECT),
}


class PagedLog(MemoryEventLog):
    """Log whose runs must not be read at once."""

    async def read(self, task_id: str, **options: Any) -> Sequence[Event]:
        events = await super().read(task_id, **options)
        assert len(events) <= PART, "the whole run was read at once"
        return events


async def write_run(log: MemoryEventLog, messages: int = 0) -> str:
    task_id = str(uuid6.uuid7())
    ids: dict[str, Any] = {"task_id": task_id, "context_id": "c", "attempt": 1, "timestamp": 1}
    first = TaskEvent(seq=1, messages=[Message.user("Hi")], model="m", agent_name="clerk", **ids)
    added = [
        MessageAddedEvent(seq=3 + number, role="user", content=f"note {number}", cause="steering", **ids)
        for number in range(messages)
    ]
    notes = [CustomEvent(seq=seq, name="note", data=seq, **ids) for seq in range(3 + messages, EVENTS)]
    final = StatusUpdateEvent(seq=EVENTS, state="completed", final=True, content="Done.", **ids)
    working = StatusUpdateEvent(seq=2, state="working", **ids)
    await log.append(task_id, [first, working, *added, *notes, final], expected_seq=0)
    return task_id


@pytest.mark.parametrize("name", REQUESTS)
async def test_long_run_is_never_read_at_once(name: str) -> None:
    make, method, path, body = REQUESTS[name]
    log = PagedLog()
    run = await write_run(log)
    await write_run(log)
    agent = Agent(ScriptedModel("Hello."), name="clerk")
    async with Runtime({"clerk": agent}, log=log, grace=0.2) as runtime, serve_app(make(runtime)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20, headers={"a2a-version": "1.0"}) as http:
            response = await http.request(method, path.format(run=run), json=body)
    assert response.status_code == 200, response.text
    # AG-UI reports failures as events.
    assert "RUN_ERROR" not in response.text


async def test_history_of_an_a2a_task_contains_the_newest_messages() -> None:
    log = MemoryEventLog()
    run = await write_run(log, messages=MAX_HISTORY + 100)
    async with Runtime({"clerk": Agent(ScriptedModel("Hello."), name="clerk")}, log=log) as runtime:
        async with serve_app(a2a(runtime)) as url, make_client(url) as http:
            response = await http.get(f"/tasks/{run}", headers={"a2a-version": "1.0"})
    texts = [message["parts"][0]["text"] for message in response.json()["history"]]
    assert texts == [f"note {number}" for number in range(100, MAX_HISTORY + 100)]


async def test_other_tasks_run_between_the_parts_of_a_fold() -> None:
    log = MemoryEventLog()
    run = await write_run(log)
    turns, turn = list[int](), 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    await Computations.fold_events(log, run, lambda event: turns.append(turn))
    counter.cancel()
    assert len(turns) == EVENTS
    assert max(turns.count(each) for each in {*turns}) <= PART


def test_data_parts_of_a_message_are_found_without_a_search() -> None:
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    chunks = [{"type": "data-note", "id": Name(f"n{n % 500}"), "data": n} for n in range(1_000)]
    message = assemble_message([{"type": "start", "messageId": "m"}, *chunks])
    assert [part["data"] for part in message["parts"]] == list(range(500, 1_000))
    assert compared < 2 * len(chunks)
