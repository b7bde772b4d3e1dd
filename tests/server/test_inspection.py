"""Outlines, ranges of events, and permissions over HTTP."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from typing_extensions import override

from rxloop import Agent, Event, EventLog, MemoryEventLog, SqliteEventLog, StatusUpdateEvent, TaskEvent, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.events import CheckpointEvent, CustomEvent
from rxloop.protocol.messages import Usage
from rxloop.recorded.outline import OutlineState, Position
from rxloop.server import Principal
from rxloop.server.http import findings, inspection
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.hidden_tools import MARK, fail, peek


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(turns or ("Hello.",) * 50)), name="clerk", tools=[refund, peek, fail])


async def store_run(log: EventLog, count: int, *, owner: str = "ann", size: int = 0) -> list[Event]:
    """Store a finished run with this number of events."""
    envelope: dict[str, Any] = {"task_id": "long", "context_id": "talk", "attempt": 1}
    ends: dict[str, Any] = {"state": "completed", "final": True, "content": "Done.", "usage": Usage()}
    events: list[Event] = [TaskEvent(seq=1, messages=[], model="m", agent_name="clerk", owner=owner, **envelope)]
    events += [StatusUpdateEvent(seq=2, state="working", **envelope)]
    usage = Usage()
    for seq in range(3, count):
        if size:
            events.append(CustomEvent(seq=seq, timestamp=seq, name="page", data="x" * size, **envelope))
        else:
            more: dict[str, Any] = {"message_count": seq, "usage": usage, "durable_seq": seq, **envelope}
            events.append(CheckpointEvent(seq=seq, timestamp=seq, iteration=seq, **more))
    events.append(StatusUpdateEvent(seq=count, timestamp=count, **ends, **envelope))
    await log.append("long", events, expected_seq=0)
    return events


async def test_outline_pages_continue_each_other() -> None:
    log = MemoryEventLog()
    await store_run(log, 1_000)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        whole = await ann.outline("long")
        pages = [await ann.outline("long", after=after, limit=300) for after in (0, 300, 600, 900, 1_000, 5_000)]
    assert (whole.first, whole.last, whole.seq, whole.final) == (1, 1_000, 1_000, True)
    assert [(page.first, page.last, page.final) for page in pages] == [
        *((1, 300, False), (301, 600, False), (601, 900, False), (901, 1_000, True)),
        *((1_001, 1_000, True), (1_001, 1_000, True)),
    ]
    assert [value for page in pages for value in page.a] == whole.a
    assert [value for page in pages for value in page.dt] == whole.dt
    assert [page.start for page in pages[1:4]] == [300, 600, 900]
    assert pages[3].opens[-1] == 2


class CountingLog(MemoryEventLog):
    """Event log that counts the events read by followers."""

    events = 0

    @override
    async def follow(self, *args: Any, **options: Any) -> AsyncGenerator[Event]:
        async for event in super().follow(*args, **options):
            self.events += 1
            yield event


async def test_next_page_of_an_outline_reads_only_its_own_events() -> None:
    log = CountingLog()
    await store_run(log, 1_000)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        await ann.outline("long", limit=900)
        log.events = 0
        page = await ann.outline("long", after=900, limit=50)
        counted, log.events = log.events, 0
        # Without the previous page, the state is computed from the start of the run.
        assert (await ann.outline("long", after=500, limit=50)).dt == [1] * 50
        assert log.events == 550
    assert page.opens == [0] * 50
    assert counted == 51


async def test_outline_after_a_rollback_does_not_continue_the_lost_events() -> None:
    log = MemoryEventLog()
    await store_run(log, 100)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        states = log.local.get(inspection.Outlines)
        lost = Position(50, 1, 7)
        states.put("long", OutlineState(lost, {("attempt", "long"): 49}))
        page = await ann.outline("long", after=50, limit=50)
    assert (page.start, page.opens[-1]) == (50, 2)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_outline_of_a_long_run_does_not_block_the_event_loop(kind: str, tmp_path: Any) -> None:
    log: EventLog = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "runs.db")
    count = 20_000
    await store_run(log, count)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        counting = asyncio.create_task(count_turns())
        response = await ann.get("/runs/long/outline")
        counting.cancel()
    assert len(response.json()["dt"]) == count
    assert turns > count / 200
    await log.aclose()


async def test_outline_is_compressed_if_the_client_accepts_it() -> None:
    log = MemoryEventLog()
    await store_run(log, 2_000)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        plain = await ann.get("/runs/long/outline", headers={"accept-encoding": "gzip;q=0"})
        async with ann.stream("GET", "/runs/long/outline", headers={"accept-encoding": "br, gzip;q=0.5"}) as response:
            compressed = b"".join([chunk async for chunk in response.aiter_raw()])
    assert "content-encoding" not in plain.headers
    assert response.headers["content-encoding"] == "gzip"
    assert len(compressed) * 4 < len(plain.content)
    assert gzip.decompress(compressed) == plain.content
    assert plain.headers["vary"] == response.headers["vary"] == "accept-encoding"


async def test_outline_of_a_waiting_run_is_not_final() -> None:
    clerk = make_clerk(call("refund", order="A1"), "Refunded.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Refund", wait=10)
        waiting = await ann.outline(run.task_id)
        await ann.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
        rest = await ann.outline(run.task_id, after=waiting.last)
    assert (waiting.final, rest.final) == (False, True)
    assert [attempt for _, attempt in rest.attempts] == [2]
    question = waiting.names.kind.index("input-required")
    received = rest.names.kind.index("input-received")
    assert rest.opens[rest.kind.index(received)] == waiting.first + waiting.kind.index(question)


async def test_internal_data_of_an_outline_requires_the_scope() -> None:
    clerk = make_clerk([call(f"peek_{MARK}", at="x"), call("fail")], "Done.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Look", wait=10)
        public = await ann.outline(run.task_id)
        with pytest.raises(ApiError) as refused:
            await ann.outline(run.task_id, internal=True)
        async with Client(served.url, token="root-key") as root:
            internal = await root.outline(run.task_id, internal=True)
            assert f"peek_{MARK}" in internal.names.name
            events = await root.events(run.task_id, internal=True)
            assert [event.seq for event in events] == [*range(1, run.seq + 1)]
    assert refused.value.status == 403
    assert MARK not in public.model_dump_json()
    assert len(public.dt) == len(internal.dt) == run.seq


async def test_range_returns_its_events_and_ends() -> None:
    log = MemoryEventLog()
    events = await store_run(log, 1_000)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        assert await ann.events("long", 3, 5) == events[2:5]
        assert [event.seq for event in await ann.events("long", 990)] == [*range(990, 1_001)]
        assert [event.seq for event in await ann.events("long")] == [*range(1, 401)]
        assert [event.seq for event in await ann.events("long", 100, 900)] == [*range(100, 500)]
        assert await ann.events("long", 1_001) == []
        assert await ann.events("long", 5, 4) == []
        async with make_client(served.url) as http:
            sse = await http.get("/runs/long/events?from=3&to=4&kinds=checkpoint")
            only_to = await http.get("/runs/long/events?to=2", headers={"accept": "application/x-ndjson"})
    assert [line for line in sse.text.splitlines() if line.startswith("id:")] == ["id: long/1.3.0", "id: long/1.4.0"]
    assert len(only_to.text.splitlines()) == 2


async def test_range_of_an_active_run_ends() -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait forever."""
        started.set()
        await asyncio.Event().wait()

    clerk = Agent(ScriptedModel(call("wait")), name="clerk", tools=[wait])
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Hi")
        await started.wait()
        kinds = [event.kind for event in await ann.events(run.task_id)]
        outline = await ann.outline(run.task_id)
        await ann.cancel(run.task_id)
    assert kinds[-1] == "tool-start"
    assert not outline.final


async def test_range_has_a_tag_that_changes_with_its_events() -> None:
    clerk = make_clerk(call("refund", order="A1"), "Refunded.")
    async with serve_api(clerk) as served, make_client(served.url) as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Refund"})).json()
        path = f"/runs/{run['taskId']}/events?from=1"
        first = await ann.get(path)
        same = await ann.get(path, headers={"if-none-match": f'"other", {first.headers["etag"]}'})
        answer = {"inputs": {run["pending"][0]["inputId"]: True}}
        await ann.post(f"/runs/{run['taskId']}/resume?wait=10", json=answer)
        changed = await ann.get(path, headers={"if-none-match": first.headers["etag"]})
        lines = await ann.get(path, headers={"accept": "application/x-ndjson"})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (changed.status_code, changed.text[: len(first.text)]) == (200, first.text)
    assert len({each.headers["etag"] for each in (first, changed, lines)}) == 3
    assert {each.headers["cache-control"] for each in (first, same)} == {"private, no-cache"}


async def test_range_of_large_events_ends_early() -> None:
    log = MemoryEventLog()
    await store_run(log, 30, size=1 << 20)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        seqs = [event.seq for event in await ann.events("long", 3)]
        following = await ann.events("long", seqs[-1] + 1, seqs[-1] + 1)
    assert seqs == [*range(3, 11)]
    assert len(following) == 1


@pytest.mark.parametrize("more", ["after=long/1.1.0", "speed=2"])
async def test_range_cannot_be_combined_with_a_cursor_or_a_speed(more: str) -> None:
    log = MemoryEventLog()
    await store_run(log, 10)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        refused = await ann.get(f"/runs/long/events?from=1&{more}")
    assert (refused.status_code, list(refused.json()["error"]["fields"])) == (422, ["from"])


@pytest.mark.parametrize("path", ["outline", "events?from=1", "outline?visibility=all"])
async def test_runs_of_other_owners_cannot_be_inspected(path: str) -> None:
    log = MemoryEventLog()
    await store_run(log, 10)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url, "bob-key") as bob:
        foreign, unknown = await bob.get(f"/runs/long/{path}"), await bob.get(f"/runs/nothing/{path}")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.content == unknown.content


@pytest.mark.parametrize("path", ["outline", "events?from=1"])
async def test_inspecting_a_run_counts_as_a_stream(path: str) -> None:
    log = MemoryEventLog()
    await store_run(log, 10)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        slots = [served.gateway.reserve_stream(Principal("ann")) for _ in range(32)]
        refused = await ann.get(f"/runs/long/{path}")
        for slot in slots:
            slot.__exit__()
        accepted = await ann.get(f"/runs/long/{path}")
    assert (refused.status_code, accepted.status_code) == (429, 200)


async def test_me_describes_the_permissions_and_the_log(tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db", keep_deltas=True)
    async with serve_api(make_clerk(), log=log) as served:
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="root-key") as root:
            mine, other = await ann.me(), await root.me()
        async with httpx.AsyncClient(base_url=served.url) as nobody:
            refused = await nobody.get("/me")
    assert (mine.principal, mine.scopes, other.scopes) == ("ann", [], ["internal", "others"])
    assert mine.may.model_dump() == {"act": True, "internal": False, "others": False}
    assert other.may.model_dump() == {"act": True, "internal": True, "others": True}
    assert (mine.log.kind, mine.log.keeps_deltas, mine.agents) == ("sqlite", True, True)
    assert refused.status_code == 401
    await log.aclose()


async def test_problems_are_listed_for_the_owner() -> None:
    clerk = make_clerk([call("fail"), call(f"peek_{MARK}")], call("refund", order="A1"))
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Refund", wait=10)
        problems = await ann.problems(run.task_id)
        async with make_client(served.url, "bob-key") as bob:
            foreign = await bob.get(f"/runs/{run.task_id}/problems")
        async with make_client(served.url) as http:
            forbidden = await http.get(f"/runs/{run.task_id}/problems?visibility=all")
            listed = (await http.get(f"/runs/{run.task_id}/problems")).json()
    assert [(each.code, each.name) for each in problems] == [("tool_failed", "fail"), ("waits", "refund")]
    assert (listed["taskId"], listed["seq"]) == (run.task_id, run.seq)
    assert list(listed["problems"][1]) == ["code", "taskId", "seq", "name", "text"]
    assert (foreign.status_code, forbidden.status_code) == (404, 403)


async def test_stall_of_an_active_run_is_listed_while_it_lasts() -> None:
    log = MemoryEventLog()
    envelope: dict[str, Any] = {"task_id": "idle", "context_id": "talk", "attempt": 1, "timestamp": 1_000}
    task = TaskEvent(seq=1, messages=[], model="m", agent_name="other", owner="ann", **envelope)
    await log.append("idle", [task, StatusUpdateEvent(seq=2, state="working", **envelope)], expected_seq=0)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        stall, orphaned = await ann.problems("idle")
    assert (stall.code, stall.seq, stall.until) == ("stalled", 2, None)
    assert stall.seconds is not None
    assert stall.seconds > 1_000_000
    assert (orphaned.code, orphaned.seq, orphaned.seconds) == ("orphaned", 2, pytest.approx(stall.seconds, abs=10))


async def test_search_continues_until_all_events_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    await store_run(log, 1_000, size=10)
    monkeypatch.setattr(findings, "SEARCH_SECONDS", 60)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        page = await ann.search("long", "XXX", limit=30)
        assert (len(page.hits), page.searched, page.next) == (30, 32, 32)
        assert page.hits[0].model_dump() == {
            "taskId": "long",
            "seq": 3,
            "kind": "custom",
            "field": "data",
            "text": "x" * 10,
            "marks": [(0, 3), (3, 6), (6, 9)],
        }
        last = await ann.search("long", "done", kinds=["status-update"])
        assert ([hit.seq for hit in last.hits], last.next, last.searched) == ([1_000], None, 1_000)
        assert (await ann.search("long", "xxx", after=2_000)).hits == []
        # Without time, each page searches a single chunk.
        monkeypatch.setattr(findings, "SEARCH_SECONDS", -1)
        pages = [await ann.search("long", "done")]
        while pages[-1].next is not None:
            pages.append(await ann.search("long", "done", after=pages[-1].next))
    assert [page.searched for page in pages] == [200, 400, 600, 800, 1_000]
    assert [hit.seq for page in pages for hit in page.hits] == [1_000]


async def test_search_follows_the_rules_for_owners_and_internal_data() -> None:
    clerk = make_clerk([call(f"peek_{MARK}", at="vault"), call("fail")], "Done.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Look", wait=10)
        public = await ann.search(run.task_id, "vault")
        async with Client(served.url, token="root-key") as root:
            internal = await root.search(run.task_id, "vault", internal=True)
        statuses: list[int] = []
        for token, query in (("bob-key", "q=x"), ("ann-key", "q=x&visibility=all"), ("ann-key", "q=x&kinds=nothing")):
            async with make_client(served.url, token) as http:
                statuses.append((await http.get(f"/runs/{run.task_id}/search?{query}")).status_code)
    assert (public.hits, statuses) == ([], [404, 403, 422])
    assert internal.hits


async def test_state_returns_only_messages_from_an_index() -> None:
    clerk = make_clerk([call("fail"), call(f"peek_{MARK}")], "Done.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Look", wait=10)
        whole = await ann.state(run.task_id)
        count = len(whole.messages)
        for start in (0, 2, count, 100):
            later = await ann.state(run.task_id, messages_from=start)
            assert (later.message_count, later.messages) == (count, whole.messages[start:])
        # The messages after an earlier event are the first messages of the newest state.
        for seq in range(1, run.seq + 1):
            earlier = await ann.state(run.task_id, seq, messages_from=1)
            assert earlier.messages == whole.messages[1 : earlier.message_count]
        async with Client(served.url, token="root-key") as root:
            internal = await root.state(run.task_id, messages_from=2, internal=True)
            assert internal.messages == (await root.state(run.task_id, internal=True)).messages[2:]
        async with make_client(served.url) as http:
            path = f"/runs/{run.task_id}/state?messagesFrom=1"
            statuses = [(await http.get(f"{path}{more}")).status_code for more in ("&seq=999", "&visibility=all")]
        async with make_client(served.url, "bob-key") as bob:
            statuses.append((await bob.get(path)).status_code)
    assert whole.message_count is None
    assert internal.message_count == count + 1
    assert statuses == [422, 403, 404]
