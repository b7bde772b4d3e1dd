"""A thread with many runs: what a request reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rxloop import Agent, RunRecord, SqliteEventLog
from rxloop.testing import ScriptedModel
from support.clients.agui import serve_agui
from support.clients.agui_posts import post

RUNS = 12


class Counting(SqliteEventLog):
    """A log that counts the records it lists."""

    listed = 0

    async def list_runs(self, **wanted: Any) -> Sequence[RunRecord]:
        found = await super().list_runs(**wanted)
        self.listed += len(found)
        return found


def asked(number: int) -> dict[str, Any]:
    messages = [{"id": f"m{number}", "role": "user", "content": "Go."}]
    return {"threadId": "t", "runId": f"r{number}", "messages": messages}


async def test_a_request_does_not_list_the_runs_that_its_thread_has_had(tmp_path: Path) -> None:
    log = Counting(tmp_path / "runs.db")
    agent = Agent(ScriptedModel(*["Done."] * RUNS), thoughts=False, name="clerk")
    async with serve_agui(agent, log=log) as served:
        counts: list[int] = []
        for number in range(RUNS):
            before = log.listed
            _, events = await post(f"{served.url}/", asked(number))
            assert events[-1]["type"] == "RUN_FINISHED"
            counts.append(log.listed - before)
    assert counts[-1] == counts[1]
