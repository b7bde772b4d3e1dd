"""Number of records read per request, for long threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rxloop import Agent, RunRecord, SqliteEventLog
from rxloop.testing import ScriptedModel
from support.clients.agui import serve_agui
from support.clients.agui_posts import post

RUNS = 12


class CountingLog(SqliteEventLog):
    """Event log counting listed records."""

    listed_count = 0

    async def list_runs(self, **filters: Any) -> Sequence[RunRecord]:
        records = await super().list_runs(**filters)
        self.listed_count += len(records)
        return records


def make_request(number: int) -> dict[str, Any]:
    messages = [{"id": f"m{number}", "role": "user", "content": "Go."}]
    return {"threadId": "t", "runId": f"r{number}", "messages": messages}


async def test_request_does_not_list_the_earlier_runs_of_its_thread(tmp_path: Path) -> None:
    log = CountingLog(tmp_path / "runs.db")
    agent = Agent(ScriptedModel(*["Done."] * RUNS), thoughts=False, name="clerk")
    async with serve_agui(agent, log=log) as served:
        counts: list[int] = []
        for number in range(RUNS):
            before = log.listed_count
            _, events = await post(f"{served.url}/", make_request(number))
            assert events[-1]["type"] == "RUN_FINISHED"
            counts.append(log.listed_count - before)
    assert counts[-1] == counts[1]
