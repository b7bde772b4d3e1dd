"""Interrupted streams of generated runs, whose parts must add up to the whole. In virtual time, without sockets."""

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
    """Answer of an application until its client disconnects."""

    def __init__(self, app: Api, address: str, headers: dict[str, str]) -> None:
        path, query = urlsplit(address)[2:4]
        self.status = 0
        self._disconnected = asyncio.Event()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
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
        """Yield the events with their ids. In NDJSON the ids are the cursors."""
        rest, place = b"", None
        while (piece := await self._pieces.get()) is not None:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"id: "):
                    place = line[4:].decode()
                elif line.startswith((b"data: ", b"{")):
                    event = Event.from_json(line.removeprefix(b"data: "))
                    yield (event.cursor if line.startswith(b"{") else place), event

    async def disconnect(self) -> None:
        """Disconnect, and wait until the application has finished the request."""
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
        self._pieces.put_nowait(body)
        if not message.get("more_body"):
            self._pieces.put_nowait(None)


async def read_in_pieces(app: Api, address: str, accept: str, each: int) -> list[Event]:
    """Read a run over connections of at most `each` events."""
    events: list[Event] = []
    last: str | None = None
    while True:
        connection = Connection(app, address, {"accept": accept, **({"last-event-id": last} if last else {})})
        count = 0
        async for place, event in connection.events():
            events.append(event)
            last, count = place, count + 1
            if count == each:
                break
        await connection.disconnect()
        if connection.status == 204:
            return events
        assert connection.status == 200


async def check_live_run(kind: RandomRun, accept: str, each: int) -> None:
    log = kind.log()
    async with Runtime({NAME: kind.agent()}, log=log) as here, Runtime({"other": kind.agent()}, log=log) as elsewhere:
        first_event = asyncio.ensure_future(anext(aiter(here.events)))
        playing = asyncio.create_task(kind.execute(here))
        task_id = (await first_event).root_task_id
        doors = [api(runtime, heartbeat=None) for runtime in (here, elsewhere)]
        path = f"/runs/{task_id}/events"
        reading = [asyncio.create_task(read_in_pieces(door, path, accept, each)) for door in doors]
        await playing
        # The run may be resumable. Readers get its events and the end of the attempt.
        unions = await asyncio.gather(*reading)
        whole = public_events(await log.read(task_id))
        for union in unions:
            assert [event for event in union if event.durable] == whole
            places = [(event.seq, event.sub) for event in union]
            assert places == sorted(set(places))
        await check_finished_run(doors[0], path, accept, await read_in_pieces(doors[0], path, accept, 10_000))


async def check_finished_run(app: Api, path: str, accept: str, whole: list[Event]) -> None:
    """Check that a reader can continue at every event of a finished run, also with filters."""
    for query, wanted in (
        ("", whole),
        (
            "?kinds=content-complete,status-update",
            [e for e in whole if e.kind in ("content-complete", "status-update")],
        ),
        ("?branch=", [event for event in whole if event.branch is None]),
        ("?nested=0", [event for event in whole if event.parent_task_id is None]),
    ):
        for position in range(len(wanted)):
            headers = {"accept": accept, "last-event-id": wanted[position].cursor}
            connection = Connection(app, path + query, headers)
            remaining = [event async for _, event in connection.events()]
            assert remaining == wanted[position + 1 :], (query, wanted[position].cursor)
            assert connection.status == (200 if remaining else 204)
            await connection.disconnect()


@settings(max_examples=RUNS)
@given(kind=random_run(), accept=ACCEPT, each=st.integers(1, 6))
def test_parts_of_an_interrupted_stream_add_up_to_the_whole(kind: RandomRun, accept: str, each: int) -> None:  # L132
    with virtual_time() as time:
        time.run(asyncio.wait_for(check_live_run(kind, accept, each), 300))
