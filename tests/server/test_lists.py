"""Pagination and access control of the lists of runs and conversations."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.testing import ScriptedModel, call
from support.api_server import RunningApi, serve_api


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 50), name="clerk")


def make_client(served: RunningApi, token: str = "ann-key") -> Client:
    return Client(served.url, token=token)


async def test_runs_are_listed_newest_first_by_page() -> None:
    async with serve_api(make_clerk()) as served, make_client(served) as ann:
        ids = [(await ann.start(None, "Hi", context_id="talk", wait=10)).task_id for _ in range(5)]
        ids += [(await ann.start(None, "Hi", wait=10)).task_id]
        first = await ann.runs(limit=2)
        # A new run comes before the first page, so it must not affect the second page.
        await ann.start(None, "Hi", wait=10)
        second = await ann.runs(limit=2, after=first.next)
        first_talk_page = await ann.runs(context_id="talk", limit=3)
        last_page = await ann.runs(context_id="talk", after=first_talk_page.next)
        assert not (await ann.runs(context_id="talk", state="failed")).runs
    assert [each.task_id for each in (*first.runs, *second.runs)] == ids[:1:-1]
    assert [each.task_id for each in (*first_talk_page.runs, *last_page.runs)] == ids[4::-1]
    assert last_page.next is None


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_conversations_are_listed_by_their_latest_runs(kind: str, tmp_path: Any) -> None:
    log: EventLog = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "runs.db")
    async with serve_api(make_clerk(), log=log) as served, make_client(served) as ann:
        for context_id in ("a", "b", "c", "a"):
            await ann.start(None, "Hi", context_id=context_id, metadata={"title": context_id.upper()}, wait=10)
        first = await ann.contexts(limit=2)
        second = await ann.contexts(limit=2, after=first.next)
        async with make_client(served, "bob-key") as bob, make_client(served, "root-key") as root:
            assert (await bob.contexts()).contexts == []
            await bob.start(None, "Hi", context_id="d", wait=10)
            assert [each.context_id for each in (await bob.contexts()).contexts] == ["d"]
            assert [each.context_id for each in (await root.contexts()).contexts] == ["d", "a", "c", "b"]
            with pytest.raises(ApiError) as missing:
                await bob.contexts(after=first.next)
        latest = (await ann.runs(context_id="a")).runs[0]
    contexts = [*first.contexts, *second.contexts]
    assert [each.context_id for each in contexts] == ["a", "c", "b"]
    assert [each.metadata["title"] for each in contexts] == ["A", "C", "B"]
    assert second.next is None
    assert contexts[0].task_id == latest.task_id
    assert contexts[0].state == "completed"
    assert contexts[0].created < contexts[0].updated
    assert missing.value.code == "not_found"
    await log.aclose()


async def test_runs_of_a_foreign_conversation_are_unknown() -> None:
    async with serve_api(make_clerk()) as served, make_client(served) as ann, make_client(served, "bob-key") as bob:
        await ann.start(None, "Hi", context_id="ann", wait=10)
        answers: list[Any] = []
        for context_id in ("ann", "unknown"):
            async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer bob-key"}) as http:
                answers.append((await http.get(f"/contexts/{context_id}/runs")).content)
            with pytest.raises(ApiError) as missing:
                await bob.runs(context_id=context_id)
            assert missing.value.status == 404
    assert answers[0] == answers[1]


async def test_conversations_of_two_owners_with_one_id_are_listed_for_each_owner() -> None:
    async with (
        serve_api(make_clerk()) as served,
        make_client(served) as ann,
        make_client(served, "bob-key") as bob,
    ):
        start = served.runtime.start
        await start("clerk", "Hi", context_id="both", owner="ann", metadata={"public": {"title": "Hers"}})
        await start("clerk", "Hi", context_id="both", owner="bob", metadata={"public": {"title": "His"}})
        assert [each.metadata for each in (await ann.contexts()).contexts] == [{"title": "Hers"}]
        assert [each.metadata for each in (await bob.contexts()).contexts] == [{"title": "His"}]


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


@tool(approve="Open the {safe} safe?", hidden=True)
async def open_safe(safe: str) -> str:
    """Open a safe."""
    return "opened"


async def test_pending_questions_of_the_owner_are_listed() -> None:
    calls = [call("refund", order="A1"), call("refund", order="B2"), call("open_safe", safe="purple")]
    clerk = Agent(ScriptedModel(*calls, "Done."), name="clerk", tools=[refund, open_safe])
    async with (
        serve_api(clerk) as served,
        make_client(served) as ann,
        make_client(served, "bob-key") as bob,
        make_client(served, "root-key") as root,
    ):
        ids = [(await ann.start(None, "Refund", context_id="talk", wait=10)).task_id]
        ids += [(await bob.start(None, "Refund", wait=10)).task_id]
        ids += [(await bob.start(None, "Open", wait=10)).task_id]
        [run] = (await ann.pending()).runs
        assert (run.task_id, [question.prompt for question in run.pending]) == (ids[0], ["Refund A1?"])
        assert run.owner is None
        assert [(each.task_id, each.owner) for each in (await root.pending()).runs] == [
            (ids[2], "bob"),
            (ids[1], "bob"),
            (ids[0], "ann"),
        ]
        assert [each.task_id for each in (await root.pending(context_id="talk")).runs] == ids[:1]
        assert (await root.pending(agent="other")).runs == []
        first = await bob.pending(limit=1)
        assert "purple" not in first.model_dump_json()
        second = await bob.pending(limit=1, after=first.next)
        assert ([each.task_id for each in first.runs + second.runs], second.next) == (ids[:0:-1], None)
        with pytest.raises(ApiError) as missing:
            await ann.pending(after=ids[1])
        assert missing.value.code == "not_found"
        await ann.answer(ids[0], {run.pending[0].input_id: True}, wait=10)
        assert (await ann.pending()).runs == []
