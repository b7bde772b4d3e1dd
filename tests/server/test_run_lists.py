"""Filters, text search and details of the list of runs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typing_extensions import override

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.events import ContentCompleteEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message, Usage
from rxloop.server import Principal
from rxloop.server.http import run_lists
from rxloop.testing import ScriptedModel, call, frames, turn
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
    assert (run.token_rate, plain.token_rate) == ([0], None)
    assert (forked.title, forked.fork_of, forked.calls) == ("Shut?", task_id, 0)
    assert (plain.title, plain.seconds, plain.model) == (None, None, None)


async def test_details_contain_the_costs_of_models_with_a_price() -> None:
    answer = turn("Done.", usage=Usage(input_tokens=1_000, output_tokens=100))
    agents = [make_agent(answer), make_agent(answer, name="papers", model="zai:glm-4.7")]
    async with serve_api(*agents) as served, connect(served) as ann:
        for agent in ("clerk", "papers"):
            await start(ann, "Hi", agent)
        assert [run.dollars for run in (await ann.runs(details=True)).runs] == [0.000_82, None]


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
    assert not {"calls", "problems", "tokenRate"} & run.keys()


async def test_forks_have_the_duration_and_the_tokens_of_their_own_events(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Usage(input_tokens=1_000, output_tokens=100)
    turns = [turn(calls=[call("fail")], usage=usage), turn("Done.", usage=usage), turn("Again.", usage=usage)]
    async with serve_api(make_agent(*turns), log=log) as served, connect(served) as ann:
        task_id = await start(ann, "Hi")
        at = next(event.seq for event in await ann.events(task_id) if event.kind == "checkpoint")
        fork = (await ann.fork(task_id, at)).task_id
        await ann.record(fork, wait=10)
        events = await ann.events(fork)
        whole, original = (await ann.runs(details=True)).runs
        monkeypatch.setattr(run_lists, "MAX_SECONDS", -1)
        served.runtime.log.local.get(run_lists.Summaries)._known.clear()
        short, _ = (await ann.runs(details=True)).runs
    assert (short.calls, short.fork_of) == (None, task_id)
    assert whole.seconds == short.seconds == (events[-1].timestamp - events[at].timestamp) / 1000
    assert [sum(run.token_rate or ()) for run in (whole, original)] == [1_100, 2_200]


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
    assert (await summaries.read(log, before)).title == "Go"
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


class LiveList:
    """Frames of a live list."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def read(self) -> tuple[str, Any]:
        """Return the name and data of the next frame."""
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        return "end", None


@asynccontextmanager
async def follow_list(client: httpx.AsyncClient, query: str = "") -> AsyncGenerator[LiveList]:
    async with client.stream("GET", f"/runs?{query}", headers={"accept": "text/event-stream"}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        yield LiveList(response)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lists, "POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("fast")
async def test_live_list_sends_the_page_and_each_change() -> None:
    clerk = make_agent("Hello.", call("refund", order="A1"), "Refunded.")
    async with serve_api(clerk) as served, make_client(served.url) as http, connect(served) as ann:
        first = await start(ann, "Hi")
        async with follow_list(http, "details=1") as frames:
            name, page = await frames.read()
            waiting = await ann.start(None, "Refund", wait=10)
            states: list[str] = []
            while (update := await frames.read())[1]["state"] != "input-required":
                states.append(update[1]["state"])
            await ann.answer(waiting.task_id, {waiting.pending[0].input_id: True})
            while (update := await frames.read())[1]["state"] != "completed":
                states.append(update[1]["state"])
    assert (name, [run["taskId"] for run in page["runs"]]) == ("page", [first])
    assert (update[0], update[1]["taskId"], update[1]["title"], update[1]["calls"]) == (
        "run",
        waiting.task_id,
        "Refund",
        1,
    )
    assert {*states} <= {"submitted", "working", "input-required"}


@pytest.mark.usefixtures("fast")
async def test_live_list_sends_only_matching_runs_and_runs_that_no_longer_match() -> None:
    agents = [make_agent(call("refund", order="A1"), "Refunded."), make_agent(name="papers")]
    async with (
        serve_api(*agents) as served,
        make_client(served.url) as http,
        connect(served) as ann,
        connect(served, "bob-key") as bob,
    ):
        waiting = await ann.start("clerk", "Refund", wait=10)
        async with follow_list(http, "state=input-required") as frames:
            _, page = await frames.read()
            await start(ann, "Hi", "papers")
            await start(bob, "Hi", "papers")
            await ann.answer(waiting.task_id, {waiting.pending[0].input_id: True})
            updates = [await frames.read()]
            while updates[-1][1]["state"] != "completed":
                updates.append(await frames.read())
    assert [run["taskId"] for run in page["runs"]] == [waiting.task_id]
    assert {update[1]["taskId"] for update in updates} == {waiting.task_id}


@pytest.mark.usefixtures("fast")
async def test_live_list_watches_unfinished_runs_of_an_older_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lists, "MAX_WATCHED", 1)
    agents = [make_agent(call("refund", order="A1"), "Refunded."), make_agent(name="papers")]
    async with serve_api(*agents) as served, make_client(served.url) as http, connect(served) as ann:
        waiting = await ann.start("clerk", "Refund", wait=10)
        await start(ann, "Hi", "papers")
        async with follow_list(http) as frames:
            await frames.read()
            await ann.answer(waiting.task_id, {waiting.pending[0].input_id: True})
            update = await frames.read()
            while update[1]["state"] != "completed":
                update = await frames.read()
    assert update[1]["taskId"] == waiting.task_id


@pytest.mark.usefixtures("fast")
async def test_live_list_of_another_owner_is_empty_and_cannot_be_searched() -> None:
    async with (
        serve_api(make_agent()) as served,
        make_client(served.url, "bob-key") as http,
        connect(served) as ann,
        connect(served, "bob-key") as bob,
    ):
        first = await start(ann, "Hi")
        headers = {"accept": "text/event-stream"}
        searched = await http.get("/runs?q=hi", headers=headers)
        foreign = await http.get(f"/runs?after={first}", headers=headers)
        preferred = await http.get("/runs", headers={"accept": "application/json, text/event-stream"})
        async with follow_list(http, "owner=ann") as empty, follow_list(http) as own:
            assert (await empty.read())[1] == (await own.read())[1] == {"runs": [], "next": None}
            await start(ann, "Hi")
            mine = await start(bob, "Hi")
            assert (await own.read())[1]["taskId"] == mine
            await served.app.drain(0.1)
            while (frame := await own.read())[0] != "end":
                assert frame[1]["taskId"] == mine
            assert (await empty.read())[0] == "end"
    assert (searched.status_code, foreign.status_code) == (422, 404)
    assert preferred.json() == {"runs": [], "next": None}
