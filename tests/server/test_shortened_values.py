"""Responses with shortened texts, lists, objects and media (`maxText`)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from rxloop import (
    Agent,
    CustomEvent,
    EventLog,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    TaskEvent,
    ToolCompleteEvent,
    tool,
)
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.messages import ImagePart, TextPart
from rxloop.server.http.omissions import shorten_event
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api

LIMIT = 400
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(900)
ENVELOPE: dict[str, Any] = {"task_id": "long", "context_id": "talk", "attempt": 1}


@tool
async def fetch() -> dict[str, Any]:
    """Return a long text and a long list."""
    return {"text": "x" * 900, "rows": [{"id": row} for row in range(1_000)]}


async def store(log: EventLog, data: Any) -> None:
    """Store a run with a picture and an event with data."""
    parts = [TextPart(text="Look"), ImagePart(data=PICTURE, media_type="image/png")]
    messages = [Message.user(parts), *(Message.user(f"{number} {'x' * 100}") for number in range(30))]
    task = TaskEvent(seq=1, messages=messages, model="m", agent_name="clerk", owner="ann", **ENVELOPE)
    await log.append("long", [task, CustomEvent(seq=2, name="page", data=data, **ENVELOPE)], expected_seq=0)


async def read_short(data: Any) -> tuple[Any, dict[str, int]]:
    """Return data of an event as shortened by the server, and the omitted values."""
    log = MemoryEventLog()
    await store(log, data)
    query = f"from=2&to=2&maxText={LIMIT}"
    async with serve_api(Agent(ScriptedModel(), name="clerk"), log=log) as served, make_client(served.url) as ann:
        event = (await ann.get(f"/runs/long/events?{query}", headers={"accept": "application/x-ndjson"})).json()
    return event["data"], event.get("metadata", {}).get("rxloop.omitted", {})


async def test_texts_end_with_an_ellipsis() -> None:
    data, omitted = await read_short({"a/b": "x" * (LIMIT + 9), "list": ["y" * LIMIT, "z"]})
    assert data == {"a/b": "x" * LIMIT + "\N{HORIZONTAL ELLIPSIS}", "list": ["y" * LIMIT, "z"]}
    assert omitted == {"/data/a~1b": 9}


async def test_lists_keep_their_first_values() -> None:
    data, omitted = await read_short({"numbers": [1] * 5_000, "rows": [{"id": 7, "ok": True}] * 5_000, "few": [0] * 50})
    assert len(data["few"]) == 50
    assert 100 < len(data["numbers"]) < 600
    assert 10 < len(data["rows"]) < 200
    assert omitted == {f"/data/{name}": 5_000 - len(data[name]) for name in ("numbers", "rows")}


async def test_objects_keep_their_first_fields() -> None:
    data, omitted = await read_short([{f"name {number}": number for number in range(5_000)}])
    assert list(data[0])[:2] == ["name 0", "name 1"]
    assert 99 < len(data[0]) < 200
    assert omitted == {"/data/0": 5_000 - len(data[0])}


async def test_shortened_media_are_valid_base64() -> None:
    text = base64.b64encode(PICTURE).decode()
    image = {"mediaType": "image/png", "data": text}
    data, omitted = await read_short({"image": image, "url": f"data:image/png;base64,{text}", "data": "a text " * 90})
    assert PICTURE.startswith(base64.b64decode(data["image"]["data"], validate=True))
    assert PICTURE.startswith(base64.b64decode(data["url"].partition(",")[2], validate=True))
    assert data["data"].endswith("\N{HORIZONTAL ELLIPSIS}")
    left = len(text) - LIMIT
    assert omitted == {"/data/image/data": left, "/data/url": left, "/data/data": 630 - LIMIT}


async def test_large_values_in_deep_values_do_not_fail() -> None:
    value: Any = "x" * 900
    for _ in range(60):
        value = [value]
    assert await read_short(value) == (value, {})


def test_short_events_are_not_changed() -> None:
    line = b'{"kind":"custom", "data": [1,2]}\n'
    assert shorten_event(line, 256) is line


async def test_client_reads_shortened_events_states_and_requests() -> None:
    agent = Agent(ScriptedModel(call("fetch"), "Done."), name="clerk", tools=[fetch], instructions="y" * 900)
    async with serve_api(agent) as served, Client(served.url, token="root-key") as root:
        run = await root.start(None, "Fetch.", wait=10)
        events = await root.events(run.task_id, max_text=LIMIT)
        state = await root.state(run.task_id, max_text=LIMIT)
        whole = await root.state(run.task_id)
        seq = [event.seq for event in events if isinstance(event, LLMCallEvent)][-1]
        request = await root.model_request(run.task_id, seq, max_text=LIMIT, internal=True)
        with pytest.raises(ApiError) as refused:
            await root.state(run.task_id, max_text=255)
    complete = next(event for event in events if isinstance(event, ToolCompleteEvent))
    rows = complete.result["rows"]
    assert {name: complete.metadata["rxloop.omitted"][f"/result/{name}"] for name in ("text", "rows")} == {
        "text": 500,
        "rows": 1_000 - len(rows),
    }
    assert not whole.omitted
    assert state.omitted == {"/messages/2/content": len(whole.messages[2].text) - LIMIT}
    assert state.messages[2].text == whole.messages[2].text[:LIMIT] + "\N{HORIZONTAL ELLIPSIS}"
    assert request.omitted["/parts/0/message/content"] == 500
    assert list(refused.value.fields) == ["maxText"]


async def test_lists_of_messages_keep_all_messages() -> None:
    log = MemoryEventLog()
    await store(log, None)
    async with (
        serve_api(Agent(ScriptedModel(), name="clerk"), log=log) as served,
        Client(served.url, token="ann-key") as ann,
    ):
        (task,) = await ann.events("long", 1, 1, max_text=LIMIT)
        state = await ann.state("long", messages_from=1, max_text=LIMIT)
        first = await ann.state("long", max_text=LIMIT)
    assert isinstance(task, TaskEvent)
    assert len(task.messages) == 31
    assert (len(state.messages), state.message_count) == (30, 31)
    assert first.omitted == task.metadata["rxloop.omitted"]
    assert list(first.omitted) == ["/messages/0/content/1/data"]
