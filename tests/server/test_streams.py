"""Event streams of the HTTP API."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from rxloop import Agent, ContentDeltaEvent, CustomEvent, Event, MemoryEventLog, RunContext, op, tool
from rxloop.client import Client
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.protocol import public_events
from rxloop.server import ServerLimits
from rxloop.stream import readers as sse
from rxloop.stream.hub import Hub
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import RawConnection, RunningApi, serve_api

READERS = int(os.environ.get("RXLOOP_READERS", "100"))
"""Number of readers per run. For a load test, use 1,000."""
UNLIMITED = ServerLimits(runs=None, streams=None)


@tool
async def look(ctx: RunContext[Any], at: str) -> str:
    """Look at something."""
    ctx.progress("looking")
    ctx.emit(CustomEvent(name="seen", data={"text": "one\ndata: two\r\n\u2028three"}))
    return f"{at} is blue"


def make_agent(*turns: Any, name: str = "clerk") -> Agent[Any, Any]:
    script = turns or (call("look", at="the sky"), frames("-It -is -blue.|", 0.001))
    return Agent(ScriptedModel(*script), tools=[look], name=name)


def make_client(served: RunningApi, token: str = "ann-key") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, headers={"authorization": f"Bearer {token}"}, timeout=30)


def parse_events(text: str) -> list[Event]:
    datas = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [Event.from_json(data.encode()) for data in datas]


QUERIES = [
    "",
    "kinds=custom,status-update",
    "kinds=tool-start,tool-complete",
    "branch=",
    "branch=elsewhere",
    "nested=0",
    "until=attempt",
]


@pytest.mark.parametrize("query", QUERIES)
async def test_filter_selects_the_same_live_logged_and_replayed_events(query: str) -> None:  # L131
    log = MemoryEventLog()
    async with serve_api(make_agent(call("look", at="the sky"), frames("-It -is -blue.|", 0.02)), log=log) as served:
        async with make_client(served) as client:
            run = (await client.post("/runs", json={"input": "Look"})).json()
            live = await client.get(f"{run['events']}?{query}")
            recorded = await client.get(f"{run['events']}?{query}")
            replayed = await client.get(f"{run['events']}?{query}&speed=1000")
    all_events = public_events(await log.read(run["taskId"]))
    options = dict(part.split("=") for part in query.split("&") if part)
    kinds = options["kinds"].split(",") if "kinds" in options else None
    expected = [
        each for each in all_events if (kinds is None or each.kind in kinds) and options.get("branch") != "elsewhere"
    ]
    if not expected:
        assert live.text == "retry: 2000\n\n"
        assert recorded.status_code == 204
        assert replayed.status_code == 204
        return
    assert [each for each in parse_events(live.text) if each.durable] == expected
    assert parse_events(recorded.text) == parse_events(replayed.text) == expected


async def test_text_with_line_endings_is_preserved() -> None:  # L139
    async with serve_api(make_agent()) as served, make_client(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Look"})).json()
        frames_ = await client.get(f"{run['events']}?kinds=custom")
        lines = await client.get(f"{run['events']}?kinds=custom", headers={"accept": "application/x-ndjson"})
    [event] = parse_events(frames_.text)
    assert isinstance(event, CustomEvent)
    assert event.data == {"text": "one\ndata: two\r\n\u2028three"}
    assert Event.from_json(lines.content) == event


async def test_heartbeat_is_sent_during_silence_if_enabled() -> None:  # L135
    quiet = frames("-" * 100 + "x|", 0.01)
    for heartbeat, minimum in ((0.05, 5), (None, 0)):
        async with serve_api(make_agent(quiet), heartbeat=heartbeat) as served, make_client(served) as client:
            run = (await client.post("/runs", json={"input": "Look"})).json()
            frames_ = (await client.get(run["events"])).text
            assert frames_.count(": heartbeat\n\n") >= minimum
            assert (": heartbeat" in frames_) == bool(minimum)


async def test_status_204_is_returned_only_to_readers_that_have_all_events() -> None:  # L136
    async with serve_api(make_agent()) as served, make_client(served) as client:
        run = (await client.post("/runs?wait=10", json={"input": "Look"})).json()
        path = run["events"]
        all_events = parse_events((await client.get(path)).text)
        statuses = [(await client.get(path, headers={"last-event-id": each.cursor})).status_code for each in all_events]
        assert statuses == [200] * (len(all_events) - 1) + [204]
        # With a filter, the last selected event may precede the end of the run.
        matching = [each for each in all_events if each.kind == "tool-start"]
        assert (await client.get(f"{path}?kinds=tool-start&after={matching[-1].cursor}")).status_code == 204
        assert (await client.get(f"{path}?after={matching[-1].cursor}")).status_code == 200
        # The header takes precedence, because EventSource repeats the query when reconnecting.
        stale = await client.get(
            f"{path}?after={all_events[0].cursor}", headers={"last-event-id": all_events[-1].cursor}
        )
        assert stale.status_code == 204


CURSORS = ["garbage", "elsewhere/1.1.0", "{}/1.9999.0", "{}/0.3.0", "{}/9.2.0", "{}/1.\u0663.0", "{}/1.3", "/"]


@pytest.mark.parametrize("parameter", ["after", "last-event-id"])
@pytest.mark.parametrize("cursor", CURSORS)
async def test_invalid_cursor_yields_a_gap_and_all_events(cursor: str, parameter: str) -> None:  # L133
    quick, slow = "Blue.", frames("-It -is -blue.|", 0.1)
    async with serve_api(make_agent(quick, slow)) as served, make_client(served) as client:
        finished = (await client.post("/runs?wait=10", json={"input": "Look"})).json()
        live = (await client.post("/runs", json={"input": "Look"})).json()
        # An unknown attempt is only detected in the log.
        recorded = cursor.startswith("{}/9")
        for run, query in (
            (finished if recorded else live, ""),
            (finished, ""),
            (finished, "speed=1000"),
            (finished, "until=attempt"),
            (finished, "kinds=task"),
        ):
            for accept in ("text/event-stream", "application/x-ndjson"):
                cursor_value = cursor.format(run["taskId"])
                params = {
                    **dict([query.split("=")] if query else []),
                    **({"after": cursor_value} if parameter == "after" else {}),
                }
                headers = [
                    (b"accept", accept.encode()),
                    *([] if parameter == "after" else [(parameter.encode(), cursor_value.encode())]),
                ]
                text = (await client.get(run["events"], params=params, headers=headers)).text
                kinds = re.findall('"kind":"([a-z-]+)"', text)
                assert kinds[:2] == ["gap", "task"], (query, accept, kinds)
                assert not text.partition("event: gap")[0].count("id: ")
        # No events are selected, so none are missing.
        empty = await client.get(f"{finished['events']}?kinds=tool-start&after=garbage")
    assert empty.status_code == 204


async def test_memory_of_a_run_is_bounded_and_older_events_come_from_the_log(  # L134
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Hub.__init__, "__defaults__", (5, 64))
    log = MemoryEventLog()
    script = [call("look", at="it")] * 5 + [frames("-It -is" + "-x" * 10 + "|", 0.05)]
    async with serve_api(make_agent(*script), log=log) as served, make_client(served) as client:
        run = (await client.post("/runs", json={"input": "Look"})).json()
        async with client.stream("GET", run["events"]) as answer:
            async for line in answer.aiter_lines():
                if "content-delta" in line:
                    break
        early = (await log.read(run["taskId"]))[2].cursor
        last = (await log.read(run["taskId"]))[-1].seq
        late, back = await asyncio.gather(client.get(run["events"]), client.get(f"{run['events']}?after={early}"))
        all_events = public_events(await log.read(run["taskId"]))
    assert last > 20
    assert [each for each in parse_events(late.text) if each.durable] == all_events
    assert [each for each in parse_events(back.text) if each.durable] == all_events[3:]


async def test_ids_stay_unique_in_a_conversation_whose_oldest_run_is_deleted() -> None:  # L134
    log = MemoryEventLog()
    async with serve_api(make_agent(*["Blue."] * 3), log=log) as served, make_client(served) as client:
        old, new = [
            (await client.post("/runs?wait=10", json={"input": "Look", "contextId": "talk"})).json() for _ in range(2)
        ]
        last = parse_events((await client.get(old["events"])).text)[-1]
        await log.delete(old["taskId"])
        assert (await client.get(old["events"], headers={"last-event-id": last.cursor})).status_code == 404
        after_delete = parse_events((await client.get(new["events"], headers={"last-event-id": last.cursor})).text)
        newest = (await client.post("/runs?wait=10", json={"input": "Look", "contextId": "talk"})).json()
    assert [each.kind for each in after_delete[:2]] == ["gap", "task"]
    assert old["cursor"] < new["cursor"] < newest["cursor"]


async def test_streams_contain_only_their_own_conversation() -> None:  # L138
    async with serve_api(make_agent(*[frames("-a -b|", 0.005)] * 10)) as served, make_client(served) as client:
        runs = [(await client.post("/runs", json={"input": "x", "contextId": f"c{n}"})).json() for n in range(5)]
        texts = await asyncio.gather(*(client.get(run["events"]) for run in runs))
    for run, text in zip(runs, texts, strict=True):
        assert {(each.task_id, each.context_id) for each in parse_events(text.text)} == {
            (run["taskId"], run["contextId"])
        }


async def test_hidden_events_are_for_principals_with_the_permission() -> None:
    async with serve_api(make_agent()) as served, make_client(served) as ann, make_client(served, "root-key") as root:
        run = (await ann.post("/runs?wait=10", json={"input": "Look", "metadata": {"a": 1}})).json()
        path = f"{run['events']}?visibility=all"
        assert (await ann.get(path)).status_code == 403
        assert '"idempotencyKey"' in (await root.get(path)).text
        assert "idempotencyKey" in (await root.get(path, headers={"accept": "application/x-ndjson"})).text


async def test_many_readers_of_a_run_share_its_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    make_frame = sse.make_frame
    monkeypatch.setattr(sse, "make_frame", lambda event, data: (encoded.append(event), make_frame(event, data))[1])
    are_connected = asyncio.Event()

    @op.on(ModelRequest)
    async def wait_for_readers(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        await are_connected.wait()
        yield request

    text_frames = frames("-" + "".join(f"word{n} -" for n in range(30)).rstrip("-") + "|", 0.02)
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(text_frames), name="clerk", loop=op.standard(before_model=[wait_for_readers])
    )
    async with serve_api(agent, limits=UNLIMITED) as served, AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(served.url, token="ann-key"))
        run = await client.start("clerk", "Look")
        readers = [await RawConnection.connect(served.url) for _ in range(READERS)]
        for reader in readers:
            await reader.get(run.events)
        assert len(served.gateway._open) == READERS
        are_connected.set()
        texts = await asyncio.gather(*(reader.reader.readuntil(b"\r\n0\r\n\r\n") for reader in readers))
        for reader in readers:
            await reader.close()
        deltas = [each for each in encoded if isinstance(each, ContentDeltaEvent)]
        assert all(b'"content":"word0 word1 ' in text and b'"state":"completed"' in text for text in texts)
        # Each event is encoded once for all readers.
        positions = [(each.seq, each.sub) for each in encoded]
        assert len(positions) == len(set(positions))
        assert len(deltas) == 30
        assert not served.gateway._open


async def test_disconnected_readers_leave_no_tasks_or_streams() -> None:
    async with (
        serve_api(make_agent(frames("-on and on", 0.01)), limits=UNLIMITED) as served,
        make_client(served) as client,
    ):
        run = (await client.post("/runs", json={"input": "Look"})).json()
        tasks_before = len(asyncio.all_tasks())
        for _ in range(5):
            readers = [await RawConnection.connect(served.url) for _ in range(READERS // 10)]
            for reader in readers:
                await reader.get(run["events"])
                await reader.reader.readuntil(b"content-delta")
            assert len(served.gateway._open) == len(readers)
            for reader in readers:
                reader.writer.transport.abort()
            async with asyncio.timeout(10):
                await served.gateway._closed.wait()
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) <= tasks_before + 1
        assert not served.gateway._account.count("ann", "streams")
        await client.post(f"/runs/{run['taskId']}/cancel")


async def test_slow_readers_are_disconnected_without_blocking_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rxloop")
    text = "x" * 30_000
    text_frames = frames("".join(f"{text}-" for _ in range(400)).rstrip("-") + "|", 0.002)
    limits = ServerLimits(runs=None, streams=None, stalled=1.0)
    async with serve_api(make_agent(text_frames), limits=limits) as served, make_client(served) as client:
        run = (await client.post("/runs", json={"input": "Look"})).json()
        slow = [await RawConnection.connect(served.url) for _ in range(READERS // 10)]
        for reader in slow:
            reader.writer.get_extra_info("socket").setsockopt(1, 8, 4_096)  # SO_RCVBUF
            await reader.get(run["events"])
            reader.reader._transport.pause_reading()  # type: ignore[attr-defined]
        gc.collect()
        tracemalloc.start()
        response = await client.get(run["events"])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert parse_events(response.text)[-1].state == "completed"  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            await served.gateway._closed.wait()
        for reader in slow:
            reader.writer.transport.abort()
    assert caplog.text.count("Disconnecting a client that stalled") == len(slow)
    # Several copies of the 12 MB text exist, including the log and the client's copy.
    assert peak < (150 + 3 * len(slow)) * (1 << 20)


async def test_reader_gets_all_events_while_others_read_nothing() -> None:
    text = "x" * 30_000
    text_frames = frames("".join(f"{text}-" for _ in range(400)).rstrip("-") + "|", 0.001)
    limits = ServerLimits(runs=None, streams=None, stalled=3_600)
    async with serve_api(make_agent(text_frames), limits=limits) as served, make_client(served) as client:
        run = (await client.post("/runs", json={"input": "Look"})).json()
        slow = [await RawConnection.connect(served.url) for _ in range(10)]
        for reader in slow:
            reader.writer.get_extra_info("socket").setsockopt(1, 8, 4_096)  # SO_RCVBUF
            await reader.get(run["events"])
            reader.reader._transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            response = await client.get(run["events"])
        assert len(served.gateway._open) == len(slow)
        # Without this, the server would wait for the slow readers.
        for reader in slow:
            reader.writer.transport.abort()
    assert parse_events(response.text)[-1].state == "completed"  # type: ignore[attr-defined]


async def test_paused_run_is_not_cancelled_by_the_end_of_its_stream() -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(ScriptedModel(*[call("pay")] * 20), tools=[pay], thoughts=False, name="clerk")
    async with serve_api(agent, on_disconnect="cancel") as served, make_client(served) as client:
        headers = {"accept": "text/event-stream"}
        for _ in range(20):
            answer = await client.post("/runs", json={"input": "Pay"}, headers=headers)
            assert parse_events(answer.text)[-1].kind == "status-update"
        await asyncio.gather(*served.gateway._tasks)
        assert {record.state for record in await served.runtime.log.list_runs()} == {"input-required"}
