"""HTTP client with a real server and unreliable connections."""

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
from support.tcp_server import serve_connections


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    script = turns or (call("pay", amount=5), frames("-It -is -paid.|", 0.001))
    return Agent(ScriptedModel(*script), tools=[pay], name="clerk", **options)


class CuttingProxy:
    """TCP proxy with a limit on events per connection."""

    def __init__(self, url: str) -> None:
        self._host, port = urlsplit(url).netloc.split(":")
        self._port = int(port)
        self.lines = 0
        self.cuts = 0
        self.url = ""

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)

        async def forward_request() -> None:
            while data := await reader.read(65536):
                upstream_writer.write(data)
                await upstream_writer.drain()
            upstream_writer.close()

        forwarding = asyncio.create_task(forward_request())
        # Even if the test ends first, so that no connection stays open.
        with contextlib.closing(writer), contextlib.closing(upstream_writer), contextlib.suppress(ConnectionError):
            await self._return_answer(upstream_reader, writer)
            await writer.drain()
        forwarding.cancel()

    async def _return_answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = 0
        while data := await upstream.read(65536):
            starts = [match.start() for match in re.finditer(rb'\{"version"', data)]
            remaining = self.lines - lines
            lines += len(starts)
            if self.lines and len(starts) > remaining:
                # Interrupt the next event.
                writer.write(data[: starts[remaining] + 40])
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def serve_cutting_proxy(url: str) -> AsyncGenerator[CuttingProxy]:
    proxy = CuttingProxy(url)
    async with serve_connections(proxy.forward) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy


async def test_client_starts_reads_answers_and_lists_runs() -> None:
    log = MemoryEventLog()
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Pay 5", metadata={"ticket": 7})
        text = ""
        async for event in client.follow(run.task_id):
            if event.kind == "status-update" and event.pending:
                await client.answer(run.task_id, {event.pending[0].input_id: True})
            if event.kind == "content-delta":
                text += event.delta
        final = await client.record(run.task_id)
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
    assert (text, final.state, final.content) == ("It is paid.", "completed", "It is paid.")


async def test_followed_stream_supports_any_view() -> None:
    async with (
        serve_api(make_clerk(frames("-It -is -7 C.|", 0.001))) as served,
        Client(served.url, token="ann-key") as client,
    ):
        run = await client.start(None, "Weather?")
        assert "".join([text async for text in client.follow(run.task_id).pipe(op.text())]) == "It is 7 C."
        events = [event async for event in client.follow(run.task_id).pipe(op.grammar())]
        final = await client.follow(run.task_id, after=events[0].cursor, kinds=["status-update"])
    assert final.state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("lines", [1, 2, 3, 5, 8])
async def test_stream_is_complete_when_the_connection_breaks_after_every_few_events(lines: int) -> None:  # L132
    log = MemoryEventLog()
    words = frames("-a-b-c-d-e-f-g-h|", 0.005)
    async with serve_api(make_clerk(call("think_aloud", thought="Hm."), words), log=log) as served:
        async with serve_cutting_proxy(served.url) as proxy, Client(proxy.url, token="ann-key", retries=3) as client:
            run = await client.start("clerk", "Spell")
            proxy.lines = lines
            events = [event async for event in client.follow(run.task_id)]
    recorded = public_events(await log.read(run.task_id))
    assert [event for event in events if event.durable] == recorded
    positions = [(event.seq, event.sub) for event in events]
    assert positions == sorted(set(positions))
    assert proxy.cuts >= len(recorded) // (lines + 1) - 1


async def test_stream_has_no_gap_when_the_server_is_killed_and_restarted(tmp_path: Path) -> None:  # L132
    file, port = tmp_path / "runs.db", free_port()
    seen: list[Event] = []
    killed = 0
    async with Client(f"http://127.0.0.1:{port}", token="ann-key", retries=12) as client, AsyncExitStack() as stack:
        server = await stack.enter_async_context(replica(file, port))
        run = await client.start("clerk", "Talk for ever")
        async for event in client.follow(run.task_id):
            seen.append(event)
            if not isinstance(event, ContentDeltaEvent) or event.attempt == killed:
                continue
            if event.attempt < 3:
                killed = event.attempt
                async with asyncio.timeout(20):
                    while (await client.record(run.task_id)).seq < event.seq:
                        pass  # Poll until the event is stored.
                await server.kill()
                server = await stack.enter_async_context(replica(file, port))
            else:
                await client.cancel(run.task_id)
    log = SqliteEventLog(file)
    complete = public_events(await log.read(run.task_id))
    await log.aclose()
    assert [event for event in seen if event.durable] == complete
    positions = [(event.attempt, event.seq, event.sub) for event in seen]
    assert positions == sorted(set(positions))
    assert {event.attempt for event in complete} == {1, 2, 3}


async def test_replay_after_each_event_returns_the_remaining_events() -> None:
    log = MemoryEventLog()
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Pay 5", wait=10)
        await client.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
        complete = [event async for event in client.follow(run.task_id)]
        for index, event in enumerate(complete[:-1], start=1):
            remaining = [each async for each in client.follow(run.task_id, after=event.cursor)]
            assert [*complete[:index], *remaining] == complete
    assert complete == public_events(await log.read(run.task_id))


async def test_unknown_cursor_returns_a_gap_and_all_events() -> None:  # L133
    async with serve_api(make_clerk("Hello.")) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Hi", wait=10)
        events = [event async for event in client.follow(run.task_id, after="elsewhere/1.99.0")]
    assert [event.kind for event in events[:2]] == ["gap", "task"]
    assert events[-1].kind == "status-update"


async def test_refusal_raises_an_error_with_its_code() -> None:
    async with serve_api(make_clerk("Hello.")) as served:
        async with Client(served.url, token="wrong") as anonymous:
            with pytest.raises(ApiError) as unknown:
                await anonymous.start("clerk", "Hi")
        async with Client(served.url, token="ann-key") as client:
            with pytest.raises(ApiError) as missing:
                await client.record("unknown")
            with pytest.raises(ApiError) as missing_stream:
                _ = [event async for event in client.follow("unknown")]
    assert (unknown.value.status, unknown.value.code) == (401, "unauthorized")
    assert (missing.value.code, missing_stream.value.code) == ("not_found", "not_found")


async def test_unreachable_server_raises_an_error_after_the_retries() -> None:
    async with Client("http://127.0.0.1:9", token="ann-key", retries=1) as client:
        with pytest.raises(ApiError) as unavailable:
            await client.start("clerk", "Hi")
        with pytest.raises(ApiError):
            _ = [event async for event in client.follow("unknown")]
    assert (unavailable.value.code, unavailable.value.status) == ("connection", None)


async def test_reader_that_stops_closes_its_connection() -> None:
    agent = make_clerk(frames("-on and on", 0.01))
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
