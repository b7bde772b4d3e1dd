"""Problems and texts of all runs over HTTP."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, StatusUpdateEvent, TaskEvent, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.events import CustomEvent, Event
from rxloop.protocol.messages import Message, Usage
from rxloop.server.http import findings
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.hidden_tools import MARK, fail, peek


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


def make_clerk(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(turns or ("Hello.",) * 50)), name="clerk", tools=[refund, peek, fail])


async def store_run(log: EventLog, task_id: str, *texts: str, owner: str = "ann", state: Any = "completed") -> None:
    """Store a run with a custom event for each text."""
    now = time.time_ns() // 1_000_000
    envelope: dict[str, Any] = {"task_id": task_id, "context_id": task_id, "attempt": 1, "timestamp": now}
    task = TaskEvent(seq=1, messages=[Message.user("Hi")], model="m", agent_name="other", owner=owner, **envelope)
    events: list[Event] = [task, StatusUpdateEvent(seq=2, state="working", **envelope)]
    events += [CustomEvent(seq=seq, name="page", data=text, **envelope) for seq, text in enumerate(texts, 3)]
    if state != "working":
        end: dict[str, Any] = {"state": state, "final": True, "usage": Usage(), **envelope}
        events.append(StatusUpdateEvent(seq=len(events) + 1, **end))
    await log.append(task_id, events, expected_seq=0)


async def list_problems(client: Client, **query: Any) -> list[tuple[str, list[str]]]:
    page = await client.recent_problems(**query)
    return [(each.run.task_id, [problem.code for problem in each.problems]) for each in page.runs]


async def test_problems_of_all_runs_are_listed_by_run_newest_first() -> None:
    clerk = make_clerk("Hello.", call("fail"), "Done.", call("refund", order="A1"))
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        await ann.start(None, "Hi", wait=10)
        failed = await ann.start(None, "Try it", wait=10)
        waiting = await ann.start(None, "Refund", wait=10)
        page = await ann.recent_problems()
        first = await ann.recent_problems(limit=1)
        assert await list_problems(ann, limit=1, after=first.next) == [(failed.task_id, ["tool_failed"])]
        assert await list_problems(ann, since=datetime.now(UTC) + timedelta(minutes=1)) == []
    assert [each.run.task_id for each in page.runs] == [waiting.task_id, failed.task_id]
    assert [each.run.title for each in page.runs] == ["Refund", "Try it"]
    assert [(each.code, each.name, each.task_id) for each in page.runs[0].problems] == [
        ("waits", "refund", waiting.task_id)
    ]
    assert (page.runs[0].run.problems, page.next, first.next) == (1, None, waiting.task_id)


async def test_problems_of_all_runs_follow_the_rules_for_owners_and_internal_data() -> None:
    clerk = make_clerk(call("fail"), "Done.", [call(f"peek_{MARK}", at="vault")] * 3, "Done.")
    async with (
        serve_api(clerk) as served,
        Client(served.url, token="ann-key") as ann,
        Client(served.url, token="bob-key") as bob,
        Client(served.url, token="root-key") as root,
    ):
        visible = (await ann.start(None, "Fail", wait=10)).task_id
        hidden = (await ann.start(None, "Fail secretly", wait=10)).task_id
        assert await list_problems(ann) == [(visible, ["tool_failed"])]
        assert await list_problems(bob) == []
        assert await list_problems(root) == [(visible, ["tool_failed"])]
        assert await list_problems(root, internal=True) == [(hidden, ["repeated"]), (visible, ["tool_failed"])]
        with pytest.raises(ApiError) as forbidden:
            await ann.recent_problems(internal=True)
        with pytest.raises(ApiError) as unknown:
            await bob.recent_problems(after=visible)
    assert (forbidden.value.status, unknown.value.status) == (403, 404)


async def test_problems_continue_on_the_next_page_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    for number in range(3):
        await store_run(log, f"run-{number}", state="failed")
    monkeypatch.setattr(findings, "PROBLEM_SECONDS", -1)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        pages = [await ann.recent_problems()]
        while pages[-1].next is not None:
            pages.append(await ann.recent_problems(after=pages[-1].next))
    assert [[each.run.task_id for each in page.runs] for page in pages] == [["run-2"], ["run-1"], ["run-0"]]


async def test_only_the_most_severe_problems_of_a_run_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MAX_PROBLEMS", 1)
    clerk = make_clerk([call("nothing_like_this"), call("fail")], "Done.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Fail", wait=10)
        [each] = (await ann.recent_problems()).runs
        assert {problem.code for problem in await ann.problems(run.task_id)} == {"refused", "tool_failed"}
    assert ([problem.code for problem in each.problems], each.run.problems) == (["tool_failed"], 2)


async def test_working_run_without_an_owner_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    await store_run(log, "lost", state="working")
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        # A process may start or finish the run right now.
        assert await list_problems(ann) == []
        monkeypatch.setattr(findings, "ORPHANED_AFTER", 0.0)
        assert await list_problems(ann) == [("lost", ["orphaned"])]
        await log.acquire_lease((await log.get_record("lost")).conversation, "lost", lambda: None)
        assert await list_problems(ann) == []


async def test_search_of_all_runs_returns_a_few_hits_of_each_run() -> None:
    log = MemoryEventLog()
    await store_run(log, "many", *["the needle"] * 10)
    await store_run(log, "none", "hay")
    await store_run(log, "one", "needle")
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        results = await ann.search_runs("NEEDLE")
        assert (await ann.search_runs("needle", since=datetime.now(UTC) + timedelta(minutes=1))).hits == []
        assert (await ann.search_runs("needle", kinds=["task"])).hits == []
        first = await ann.search_runs("needle", limit=3)
        rest = await ann.search_runs("needle", after=first.next)
    assert [(hit.task_id, hit.seq) for hit in results.hits] == [("one", 3), *(("many", seq) for seq in range(3, 8))]
    assert [(run.task_id, run.title) for run in results.runs] == [("one", "Hi"), ("many", "Hi")]
    assert results.next is None
    assert [(hit.task_id, hit.seq) for hit in first.hits] == [("one", 3), ("many", 3), ("many", 4)]
    assert [(hit.task_id, hit.seq) for hit in rest.hits] == [("many", seq) for seq in range(5, 10)]


async def test_search_of_all_runs_continues_inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    await store_run(log, "old", "needle")
    await store_run(log, "long", *["hay"] * 500, "needle")
    # Without time, each page searches a single chunk.
    monkeypatch.setattr(findings, "SEARCH_SECONDS", -1)
    async with serve_api(make_clerk(), log=log) as served, Client(served.url, token="ann-key") as ann:
        pages = [await ann.search_runs("needle")]
        while pages[-1].next is not None:
            pages.append(await ann.search_runs("needle", after=pages[-1].next))
    assert [page.next for page in pages] == ["long/200", "long/400", "long/504", None]
    assert [(hit.task_id, hit.seq) for page in pages for hit in page.hits] == [("long", 503), ("old", 3)]


async def test_search_of_all_runs_follows_the_rules_for_owners_and_internal_data() -> None:
    clerk = make_clerk([call(f"peek_{MARK}", at="vault"), call("fail")], "Done.")
    async with (
        serve_api(clerk) as served,
        Client(served.url, token="ann-key") as ann,
        Client(served.url, token="bob-key") as bob,
        Client(served.url, token="root-key") as root,
    ):
        run = await ann.start(None, "Look", wait=10)
        assert (await ann.search_runs("vault")).hits == []
        assert {hit.task_id for hit in (await ann.search_runs("look")).hits} == {run.task_id}
        assert (await bob.search_runs("look")).hits == []
        assert {hit.task_id for hit in (await root.search_runs("look")).hits} == {run.task_id}
        assert (await root.search_runs("vault", internal=True)).hits


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/search?q=x&visibility=all", 403),
        ("/search?q=x&kinds=nothing", 422),
        ("/search", 422),
        ("/search?q=x&after=1", 422),
        ("/search?q=x&after=unknown/1", 404),
        ("/search?q=x&after=foreign/1", 404),
        ("/problems?visibility=all", 403),
        ("/problems?since=yesterday", 422),
        ("/problems?after=foreign", 404),
    ],
)
async def test_invalid_requests_for_all_runs_are_refused(path: str, status: int) -> None:
    log = MemoryEventLog()
    await store_run(log, "foreign", owner="bob")
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as http:
        assert (await http.get(path)).status_code == status
