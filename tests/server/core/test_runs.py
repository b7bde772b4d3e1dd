"""Number of log queries when a run starts in an existing conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.pipeline.records import RunRecord
from rxloop.server import api
from rxloop.testing import ScriptedModel


async def test_request_lists_the_runs_of_its_conversation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[dict[str, Any]] = []
    list_runs = MemoryEventLog.list_runs

    async def count(log: MemoryEventLog, **query: Any) -> Sequence[RunRecord]:
        queries.append(query)
        return await list_runs(log, **query)

    runtime = Runtime({"clerk": Agent(ScriptedModel("Blue.", "Red."))}, log=MemoryEventLog())
    transport = httpx.ASGITransport(app=api(runtime))
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        first = await client.post("/runs?wait=10", json={"input": "Which one?"})
        context_id = first.json()["contextId"]
        monkeypatch.setattr(MemoryEventLog, "list_runs", count)
        second = await client.post("/runs?wait=10", json={"input": "Another one?", "contextId": context_id})
    assert second.json()["state"] == "completed"
    assert queries == [{"context_id": context_id, "owner": "", "unfinished": True, "after": None, "limit": 10}]
