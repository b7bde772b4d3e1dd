"""The typed client, against a real server and over connections that break."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rxloop import Agent, ContentDeltaEvent, Event, MemoryEventLog, SqliteEventLog, op, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol import public_events
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_api
from support.processes.replicas import free_port, replica


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    script = turns or (call("pay", amount=5), frames("-It -is -paid.|", 0.001))
    return Agent(ScriptedModel(*script), tools=[pay], name="clerk", **options)


class Cutting:
    """A way to a server that breaks off after so many events, each time."""

    def __init__(self, url: str) -> None:
        self._host, port = urlsplit(url).netloc.split(":")
        self._port = int(port)
        self.lines = 0
        self.cuts = 0
        self.url = ""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(self._host, self._port)

        async def up() -> None:
            while data := await reader.read(65536):
                here.write(data)
                await here.drain()
            here.close()

        asking = asyncio.create_task(up())
        lines = 0
        with contextlib.suppress(ConnectionError):
            while data := await there.read(65536):
                begins = [found.start() for found in re.finditer(rb'\{"version"', data)]
                left = self.lines - lines
                lines += len(begins)
                if self.lines and len(begins) > left:
                    # In the middle of the next one.
                    writer.write(data[: begins[left] + 40])
                    self.cuts += 1
                    break
                writer.write(data)
                await writer.drain()
        asking.cancel()
        here.close()
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def cutting(url: str) -> AsyncGenerator[Cutting]:
    made = Cutting(url)
    server = await asyncio.start_server(made.carry, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


async def test_a_program_starts_reads_answers_and_lists() -> None:
    log = MemoryEventLog()
    async with serve_api(clerk(), log=log) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Pay 5", metadata={"ticket": 7})
        text = ""
        async for event in client.follow(run.task_id):
            if event.kind == "status-update" and event.pending:
                await client.answer(run.task_id, {event.pending[0].input_id: True})
            if event.kind == "content-delta":
                text += event.delta
        over = await client.record(run.task_id)
        assert [each.name for each in await client.agents()] == ["clerk"]
        assert [each.task_id for each in (await client.runs()).runs] == [run.task_id]
        assert [each.role for each in await client.messages(run.context_id)] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        fork = await client.fork(run.task_id, 1, input="Pay 6")
        assert fork.metadata == {"ticket": 7}
    assert (text, over.state, over.content) == ("It is paid.", "completed", "It is paid.")


async def test_any_view_works_on_what_is_followed() -> None:
    async with (
        serve_api(clerk(frames("-It -is -7 C.|", 0.001))) as served,
        Client(served.url, token="ann-key") as client,
    ):
        run = await client.start(None, "Weather?")
        assert "".join([text async for text in client.follow(run.task_id).pipe(op.text())]) == "It is 7 C."
        events = [event async for event in client.follow(run.task_id).pipe(op.grammar())]
        final = await client.follow(run.task_id, after=events[0].cursor, kinds=["status-update"])
    assert final.state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("lines", [1, 2, 3, 5, 8])
async def test_cut_after_each_few_events_the_stream_is_the_same(lines: int) -> None:  # L132
    log = MemoryEventLog()
    words = frames("-a-b-c-d-e-f-g-h|", 0.005)
    async with serve_api(clerk(call("think_aloud", thought="Hm."), words), log=log) as served:
        async with cutting(served.url) as way, Client(way.url, token="ann-key", retries=3) as client:
            run = await client.start("clerk", "Spell")
            way.lines = lines
            events = [event async for event in client.follow(run.task_id)]
    recorded = public_events(await log.read(run.task_id))
    assert [event for event in events if event.durable] == recorded
    places = [(event.seq, event.sub) for event in events]
    assert places == sorted(set(places))
    assert way.cuts >= len(recorded) // (lines + 1) - 1


async def test_a_server_that_is_killed_and_comes_back_is_followed_without_a_gap(tmp_path: Path) -> None:  # L132
    file, port = tmp_path / "runs.db", free_port()
    seen: list[Event] = []
    killed = 0
    async with Client(f"http://127.0.0.1:{port}", token="ann-key", retries=12) as client, AsyncExitStack() as stack:
        serves = await stack.enter_async_context(replica(file, port))
        run = await client.start("clerk", "Talk for ever")
        async for event in client.follow(run.task_id):
            seen.append(event)
            if not isinstance(event, ContentDeltaEvent) or event.attempt == killed:
                continue
            if event.attempt < 3:
                killed = event.attempt
                async with asyncio.timeout(20):
                    while (await client.record(run.task_id)).seq < event.seq:
                        pass  # What has come is in the log then.
                await serves.kill()
                serves = await stack.enter_async_context(replica(file, port))
            else:
                await client.cancel(run.task_id)
    log = SqliteEventLog(file)
    whole = public_events(await log.read(run.task_id))
    await log.aclose()
    assert [event for event in seen if event.durable] == whole
    places = [(event.attempt, event.seq, event.sub) for event in seen]
    assert places == sorted(set(places))
    assert {event.attempt for event in whole} == {1, 2, 3}


async def test_cut_after_each_event_of_a_recorded_run_the_union_is_the_whole() -> None:
    log = MemoryEventLog()
    async with serve_api(clerk(), log=log) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Pay 5", wait=10)
        await client.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
        whole = [event async for event in client.follow(run.task_id)]
        for place, event in enumerate(whole[:-1], start=1):
            rest = [each async for each in client.follow(run.task_id, after=event.cursor)]
            assert [*whole[:place], *rest] == whole
    assert whole == public_events(await log.read(run.task_id))


async def test_a_cursor_of_nowhere_gets_a_gap_and_then_everything() -> None:  # L133
    async with serve_api(clerk("Hello.")) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Hi", wait=10)
        events = [event async for event in client.follow(run.task_id, after="elsewhere/1.99.0")]
    assert [event.kind for event in events[:2]] == ["gap", "task"]
    assert events[-1].kind == "status-update"


async def test_a_refusal_is_an_error_with_its_code() -> None:
    async with serve_api(clerk("Hello.")) as served:
        async with Client(served.url, token="wrong") as stranger:
            with pytest.raises(ApiError) as unknown:
                await stranger.start("clerk", "Hi")
        async with Client(served.url, token="ann-key") as client:
            with pytest.raises(ApiError) as missing:
                await client.record("nobody")
            with pytest.raises(ApiError) as lost:
                _ = [event async for event in client.follow("nobody")]
    assert (unknown.value.status, unknown.value.code) == (401, "unauthorized")
    assert (missing.value.code, lost.value.code) == ("not_found", "not_found")


async def test_a_server_that_is_away_is_tried_again_and_then_told_of() -> None:
    async with Client("http://127.0.0.1:9", token="ann-key", retries=1) as client:
        with pytest.raises(ApiError) as away:
            await client.start("clerk", "Hi")
        with pytest.raises(ApiError):
            _ = [event async for event in client.follow("nobody")]
    assert (away.value.code, away.value.status) == ("connection", None)


async def test_a_reader_that_stops_leaves_no_connection() -> None:
    agent = clerk(frames("-on and on", 0.01))
    async with serve_api(agent) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Go on")
        events = aiter(client.follow(run.task_id))
        async for event in events:
            if event.kind == "content-delta":
                break
        assert len(served.gateway._open) == 1
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        async with asyncio.timeout(5):
            await served.gateway._closed.wait()
        assert (await client.cancel(run.task_id)).state == "canceled"
