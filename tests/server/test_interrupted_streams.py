"""Interrupted event streams of generated runs, in virtual time and without sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import Event, Runtime
from rxloop.protocol import public_events
from rxloop.server import Api, api
from rxloop.testing import virtual_time
from support.faulty_components import PLANTED
from support.random_runs import NAME, RandomRun, random_run

RUNS = int(os.environ.get("RXLOOP_CUT_RUNS", "12"))
ACCEPT = st.sampled_from(["text/event-stream", "application/x-ndjson"])


class Connection:
    """HTTP connection to an ASGI application, without a socket."""

    def __init__(self, app: Api, address: str, headers: dict[str, str]) -> None:
        path, query = urlsplit(address)[2:4]
        self.status = 0
        self._disconnected = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "root_path": "",
            "app": app,
        }
        self._serving = asyncio.create_task(app(scope, self._receive, self._send))

    async def events(self) -> AsyncIterator[tuple[str | None, Event]]:
        """Yield events with their ids, which are cursors in NDJSON."""
        rest, event_id = b"", None
        while (chunk := await self._chunks.get()) is not None:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"id: "):
                    event_id = line[4:].decode()
                elif line.startswith((b"data: ", b"{")):
                    event = Event.from_json(line.removeprefix(b"data: "))
                    yield (event.cursor if line.startswith(b"{") else event_id), event

    async def disconnect(self) -> None:
        self._disconnected.set()
        await asyncio.wait_for(self._serving, 10)

    async def _receive(self) -> dict[str, Any]:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        body: bytes = message.get("body", b"")
        assert PLANTED.encode() not in body, body
        self._chunks.put_nowait(body)
        if not message.get("more_body"):
            self._chunks.put_nowait(None)


async def read_in_parts(app: Api, address: str, accept: str, max_events: int) -> list[Event]:
    """Read all events, reconnecting after every `max_events` events."""
    events: list[Event] = []
    last: str | None = None
    while True:
        connection = Connection(app, address, {"accept": accept, **({"last-event-id": last} if last else {})})
        count = 0
        async for event_id, event in connection.events():
            events.append(event)
            last, count = event_id, count + 1
            if count == max_events:
                break
        await connection.disconnect()
        if connection.status == 204:
            return events
        assert connection.status == 200


async def check_live_run(kind: RandomRun, accept: str, max_events: int) -> None:
    log = kind.log()
    async with Runtime({NAME: kind.agent()}, log=log) as owner, Runtime({"other": kind.agent()}, log=log) as other:
        first_event = asyncio.ensure_future(anext(aiter(owner.events)))
        running = asyncio.create_task(kind.execute(owner))
        task_id = (await first_event).root_task_id
        adapters = [api(runtime, heartbeat=None) for runtime in (owner, other)]
        path = f"/runs/{task_id}/events"
        reading = [asyncio.create_task(read_in_parts(adapter, path, accept, max_events)) for adapter in adapters]
        await running
        # The run may be resumable, so the streams must include the end of the attempt.
        streams = await asyncio.gather(*reading)
        all_events = public_events(await log.read(task_id))
        for received in streams:
            assert [event for event in received if event.durable] == all_events
            positions = [(event.seq, event.sub) for event in received]
            assert positions == sorted(set(positions))
        await check_finished_run(adapters[0], path, accept, await read_in_parts(adapters[0], path, accept, 10_000))


async def check_finished_run(app: Api, path: str, accept: str, all_events: list[Event]) -> None:
    """Check that filtered and unfiltered streams can be resumed after any event."""
    for query, expected in (
        ("", all_events),
        (
            "?kinds=content-complete,status-update",
            [e for e in all_events if e.kind in ("content-complete", "status-update")],
        ),
        ("?branch=", [event for event in all_events if event.branch is None]),
        ("?nested=0", [event for event in all_events if event.parent_task_id is None]),
    ):
        for position in range(len(expected)):
            headers = {"accept": accept, "last-event-id": expected[position].cursor}
            connection = Connection(app, path + query, headers)
            remaining = [event async for _, event in connection.events()]
            assert remaining == expected[position + 1 :], (query, expected[position].cursor)
            assert connection.status == (200 if remaining else 204)
            await connection.disconnect()


@settings(max_examples=RUNS)
@given(kind=random_run(), accept=ACCEPT, max_events=st.integers(1, 6))
def test_parts_of_an_interrupted_stream_contain_all_events_once(
    kind: RandomRun, accept: str, max_events: int
) -> None:  # L132
    with virtual_time() as time:
        time.run(asyncio.wait_for(check_live_run(kind, accept, max_events), 300))
