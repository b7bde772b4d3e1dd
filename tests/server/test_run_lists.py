"""Filters, text search and details of the list of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typing_extensions import override

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.events import ContentCompleteEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.server import Principal
from rxloop.server.http import run_lists
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import RunningApi, make_client, serve_api
from support.hidden_tools import MARK, fail, peek


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


def make_agent(*turns: Any, name: str = "clerk", model: str = "small") -> Agent[Any, Any]:
    script = ScriptedModel(*(turns or ("Hello.",) * 50), name=model)
    return Agent(script, name=name, tools=[refund, peek, fail])


def connect(served: RunningApi, token: str = "ann-key") -> Client:
    return Client(served.url, token=token)


async def start(client: Client, text: str, agent: str | None = None, **options: Any) -> str:
    return (await client.start(agent, text, wait=10, **options)).task_id


async def list_ids(client: Client, **filters: Any) -> list[str]:
    return [run.task_id for run in (await client.runs(**filters)).runs]


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    event_log: EventLog = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db")
    yield event_log
    await event_log.aclose()


async def test_runs_are_filtered_by_agent_model_state_and_time(log: EventLog) -> None:
    agents = [
        make_agent(),
        make_agent(name="papers", model="large"),
        make_agent(call("refund", order="A1"), name="cash"),
    ]
    async with serve_api(*agents, log=log) as served, connect(served) as ann:
        first, second = await start(ann, "Hi", "clerk", context_id="talk"), await start(ann, "Hi", "papers")
        waiting = await start(ann, "Refund", "cash")
        assert await list_ids(ann, agent="papers") == [second]
        assert await list_ids(ann, model="large") == [second]
        assert await list_ids(ann, model="small") == [waiting, first]
        assert await list_ids(ann, model="small", context_id="talk") == [first]
        assert await list_ids(ann, unfinished=True) == [waiting]
        assert await list_ids(ann, unfinished=True, state="completed") == []
        now = datetime.now(UTC)
        assert await list_ids(ann, since=now - timedelta(minutes=1)) == [waiting, second, first]
        assert await list_ids(ann, since=now + timedelta(minutes=1)) == []
        assert await list_ids(ann, until=(now - timedelta(minutes=1)).replace(tzinfo=None)) == []


async def test_runs_of_another_owner_require_the_scope(log: EventLog) -> None:
    async with (
        serve_api(make_agent(), log=log) as served,
        connect(served) as ann,
        connect(served, "bob-key") as bob,
        connect(served, "root-key") as root,
    ):
        ids = [await start(ann, "Mine"), await start(bob, "Mine")]
        unowned = (await served.runtime.start("clerk", "Mine")).task_id
        assert await list_ids(root, owner="ann") == [ids[0]]
        assert await list_ids(root, owner="") == [unowned]
        assert await list_ids(root, q="mine") == [unowned, ids[1], ids[0]]
        assert await list_ids(bob, owner="ann") == []
        assert await list_ids(bob, owner="bob") == [ids[1]]
        assert await list_ids(bob, q="mine") == [ids[1]]
        with pytest.raises(ApiError) as refused:
            await bob.runs(q="mine", after=ids[0])
    assert refused.value.status == 404


@pytest.mark.parametrize("text", ["invoice 8812", "PAID", "fail", "{id}", "talk-7", "clerk"])
async def test_search_finds_questions_answers_tool_names_and_ids(text: str, log: EventLog) -> None:
    agents = [make_agent(call("fail"), "It is paid."), make_agent(name="papers")]
    async with serve_api(*agents, log=log) as served, connect(served) as ann:
        task_id = await start(ann, "Where is Invoice 8812?", "clerk", context_id="talk-7")
        await start(ann, "Hi", "papers")
        assert await list_ids(ann, q=text.replace("{id}", task_id[-12:])) == [task_id]
        assert await list_ids(ann, q="nothing like this") == []


async def test_search_does_not_reveal_hidden_content() -> None:
    async with serve_api(make_agent(call(f"peek_{MARK}", at="vault"), "Done.")) as served, connect(served) as ann:
        await start(ann, "Look")
        assert [await list_ids(ann, q=text) for text in (MARK, "vault")] == [[], []]
        assert len(await list_ids(ann, q="done")) == 1


async def test_search_continues_on_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_api(make_agent()) as served, connect(served) as ann:
        ids = [await start(ann, "Refund" if number % 3 == 0 else "Hi") for number in range(10)]
        first = await ann.runs(q="refund", limit=2)
        second = await ann.runs(q="refund", limit=2, after=first.next)
        assert [run.task_id for run in (*first.runs, *second.runs)] == [ids[9], ids[6], ids[3], ids[0]]
        assert second.next is None
        # Without time, each page examines a single run.
        monkeypatch.setattr(run_lists, "MAX_SECONDS", -1)
        pages, after = [await ann.runs(q="refund")], None
        while (after := pages[-1].next) is not None:
            pages.append(await ann.runs(q="refund", after=after))
    assert len(pages) == 10
    assert [run.task_id for page in pages for run in page.runs] == [ids[9], ids[6], ids[3], ids[0]]


async def test_details_describe_each_run(log: EventLog) -> None:
    turns = (call("fail"), frames("--Sorry.|", 0.001), "Again.")
    async with serve_api(make_agent(*turns), log=log) as served, connect(served) as ann:
        task_id = await start(ann, "Is  it\nopen?  " + "x" * 200)
        fork = (await ann.fork(task_id, 1, input="Shut?")).task_id
        await ann.record(fork, wait=10)
        forked, run = (await ann.runs(details=True)).runs
        [plain] = (await ann.runs(limit=1)).runs
    assert run.title == "Is it open? " + "x" * 107 + "\u2026"
    assert (run.model, run.calls, run.problems, run.fork_of) == ("small", 1, 1, None)
    assert run.seconds == (run.updated - run.created) / 1000
    assert (forked.title, forked.fork_of, forked.calls) == ("Shut?", task_id, 0)
    assert (plain.title, plain.seconds, plain.model) == (None, None, None)


class CountingLog(MemoryEventLog):
    """Event log that counts the events read by followers."""

    events = 0

    @override
    async def follow(self, *args: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        async for event in super().follow(*args, **options):
            self.events += 1
            yield event


async def store(log: EventLog, seq: int, count: int, *, timestamp: int = 1_000, text: str = "Go") -> None:
    """Store events of an active run."""
    envelope: dict[str, Any] = {"task_id": "long", "context_id": "talk", "attempt": 1, "timestamp": timestamp}
    first: list[Any] = [
        TaskEvent(seq=1, messages=[Message.user(text)], model="m", agent_name="x", owner="ann", **envelope),
        StatusUpdateEvent(seq=2, state="working", **envelope),
    ]
    messages = [
        ContentCompleteEvent(seq=number, step=str(number), **envelope) for number in range(max(seq, 3), seq + count)
    ]
    await log.append("long", [*(first if seq == 1 else []), *messages], expected_seq=seq - 1)


async def test_details_read_only_new_events() -> None:
    log = CountingLog()
    await store(log, 1, 500)
    async with serve_api(make_agent(), log=log) as served, connect(served) as ann:
        counts: list[int] = []
        for seq in (None, None, 501):
            if seq is not None:
                await store(log, seq, 10)
            log.events = 0
            [run] = (await ann.runs(details=True)).runs
            counts.append(log.events)
    assert counts == [500, 0, 11]
    assert (run.seq, run.title) == (510, "Go")


async def test_details_that_need_too_much_time_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lists, "MAX_SECONDS", -1)
    async with serve_api(make_agent()) as served, make_client(served.url) as ann:
        await ann.post("/runs?wait=10", json={"input": "Hi"})
        [run] = (await ann.get("/runs?details=1")).json()["runs"]
    assert (run["title"], run["model"]) == ("Hi", "small")
    assert not {"calls", "problems"} & run.keys()


async def test_details_after_a_rollback_describe_the_restored_run() -> None:
    log, restored = MemoryEventLog(), MemoryEventLog()
    await store(log, 1, 20)
    await store(restored, 1, 10, timestamp=5_000, text="Restored")
    summaries = run_lists.Summaries()
    before = await log.get_record("long")
    after = await restored.get_record("long")
    await summaries.read(log, before)
    assert summaries.find(before) is not None
    assert summaries.find(after) is None
    await summaries.read(restored, after)
    assert summaries.find(after) is not None
    await store(restored, 11, 10, timestamp=5_000)
    later = await restored.get_record("long")
    await summaries.read(log, before)
    assert (await summaries.read(restored, later)).title == "Restored"


@pytest.mark.parametrize("query", ["q=hi", "details=1"])
async def test_reading_events_for_a_list_counts_as_a_stream(query: str) -> None:
    async with serve_api(make_agent()) as served, make_client(served.url) as ann:
        slots = [served.gateway.reserve_stream(Principal("ann")) for _ in range(32)]
        refused, allowed = await ann.get(f"/runs?{query}"), await ann.get("/runs?agent=clerk")
        for slot in slots:
            slot.__exit__()
    assert (refused.status_code, allowed.status_code) == (429, 200)


@pytest.mark.parametrize("query", ["since=yesterday", "until=5", "q=", "details=perhaps"])
async def test_invalid_filters_are_refused(query: str) -> None:
    async with serve_api(make_agent()) as served, make_client(served.url) as ann:
        refused: httpx.Response = await ann.get(f"/runs?{query}")
    assert (refused.status_code, list(refused.json()["error"]["fields"])) == (422, [query.partition("=")[0]])
