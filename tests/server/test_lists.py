"""The lists of runs and conversations: newest first, page by page, and nobody else's."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rxloop import Agent, EventLog, MemoryEventLog, SqliteEventLog
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.testing import ScriptedModel
from support.api_server import RunningApi, serve_api


def clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 50), name="clerk")


def client_of(served: RunningApi, token: str = "ann-key") -> Client:
    return Client(served.url, token=token)


async def test_runs_come_newest_first_page_by_page() -> None:
    async with serve_api(clerk()) as served, client_of(served) as ann:
        ids = [(await ann.start(None, "Hi", context_id="talk", wait=10)).task_id for _ in range(5)]
        ids += [(await ann.start(None, "Hi", wait=10)).task_id]
        first = await ann.runs(limit=2)
        # What comes meanwhile belongs before the first page.
        await ann.start(None, "Hi", wait=10)
        second = await ann.runs(limit=2, after=first.next)
        of_talk = await ann.runs(context_id="talk", limit=3)
        rest = await ann.runs(context_id="talk", after=of_talk.next)
        assert not (await ann.runs(context_id="talk", state="failed")).runs
    assert [each.task_id for each in (*first.runs, *second.runs)] == ids[:1:-1]
    assert [each.task_id for each in (*of_talk.runs, *rest.runs)] == ids[4::-1]
    assert rest.next is None


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_conversations_come_by_their_latest_runs(kind: str, tmp_path: Any) -> None:
    log: EventLog = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "runs.db")
    async with serve_api(clerk(), log=log) as served, client_of(served) as ann:
        for context_id in ("a", "b", "c", "a"):
            await ann.start(None, "Hi", context_id=context_id, metadata={"title": context_id.upper()}, wait=10)
        first = await ann.contexts(limit=2)
        second = await ann.contexts(limit=2, after=first.next)
        async with client_of(served, "bob-key") as bob, client_of(served, "root-key") as root:
            assert (await bob.contexts()).contexts == []
            await bob.start(None, "Hi", context_id="d", wait=10)
            assert [each.context_id for each in (await bob.contexts()).contexts] == ["d"]
            assert [each.context_id for each in (await root.contexts()).contexts] == ["d", "a", "c", "b"]
            # Somebody else's page is none.
            with pytest.raises(ApiError) as missing:
                await bob.contexts(after=first.next)
        latest = (await ann.runs(context_id="a")).runs[0]
    found = [*first.contexts, *second.contexts]
    assert [each.context_id for each in found] == ["a", "c", "b"]
    assert [each.metadata["title"] for each in found] == ["A", "C", "B"]
    assert second.next is None
    assert found[0].task_id == latest.task_id
    assert found[0].state == "completed"
    assert found[0].created < found[0].updated
    assert missing.value.code == "not_found"
    await log.aclose()


async def test_the_runs_of_anothers_conversation_are_not_there() -> None:
    async with serve_api(clerk()) as served, client_of(served) as ann, client_of(served, "bob-key") as bob:
        await ann.start(None, "Hi", context_id="hers", wait=10)
        said: list[Any] = []
        for context_id in ("hers", "nobodys"):
            async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer bob-key"}) as http:
                said.append((await http.get(f"/contexts/{context_id}/runs")).content)
            with pytest.raises(ApiError) as missing:
                await bob.runs(context_id=context_id)
            assert missing.value.status == 404
    assert said[0] == said[1]


async def test_a_conversation_that_somebody_else_began_at_the_same_moment_is_in_one_list_alone() -> None:
    log = MemoryEventLog()
    async with serve_api(clerk(), log=log) as served, client_of(served) as ann, client_of(served, "bob-key") as bob:
        # As two servers would let both of them begin it.
        await served.runtime.start(
            "clerk", "Hi", context_id="both", owner="ann", metadata={"public": {"title": "Hers"}}
        )
        await served.runtime.start("clerk", "Hi", context_id="both", owner="bob")
        assert [each.metadata for each in (await ann.contexts()).contexts] == [{"title": "Hers"}]
        assert (await bob.contexts()).contexts == []
