"""Lists of runs that include a damaged run or a run that was removed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Agent, MemoryEventLog, SqliteEventLog
from rxloop.errors import UnknownRun
from rxloop.evals.case import METADATA_KEY
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.hidden_tools import fail


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*(call("fail"), "The needle.") * 4), name="clerk", tools=[fail])


def damage(path: Path, task_id: str, seq: int) -> None:
    """Truncate the JSON of an event."""
    with sqlite3.connect(path) as database:
        [run] = database.execute("SELECT rowid FROM runs WHERE task_id = ?", (task_id,)).fetchone()
        database.execute("UPDATE events SET json = substr(json, 1, 20) WHERE run = ? AND seq = ?", (run, seq))
    database.close()


async def check_lists(http: Any, damaged: str, others: list[str], title: str) -> None:
    """Check that lists contain the other runs."""
    detailed = (await http.get("/runs?details=true")).json()["runs"]
    assert [run["taskId"] for run in detailed if run.get("problems") == 1] == others
    assert {run["taskId"]: run.get("title") for run in detailed}.get(damaged, title) == title
    found = (await http.get("/runs?q=needle")).json()["runs"]
    problems = (await http.get("/problems")).json()["runs"]
    hits = (await http.get("/search?q=needle")).json()
    assert [run["taskId"] for run in found] == others
    assert [each["run"]["taskId"] for each in problems] == others
    assert ([run["taskId"] for run in hits["runs"]], hits.get("next")) == (others, None)


@pytest.mark.parametrize(("seq", "title"), [(1, ""), (4, "")])
async def test_damaged_run_does_not_prevent_lists(seq: int, title: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    labels = {METADATA_KEY: "trial", f"{METADATA_KEY}.variant": "good"}
    log = SqliteEventLog(path)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        ids: list[str] = []
        for number in range(3):
            metadata = {**labels, f"{METADATA_KEY}.case": str(number)}
            ids.append((await served.runtime.start("clerk", "Go", owner="ann", metadata=metadata)).task_id)
            await ann.get(f"/runs/{ids[-1]}?wait=10")
    await log.aclose()
    damage(path, ids[1], seq)
    log = SqliteEventLog(path)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        await check_lists(ann, ids[1], [ids[2], ids[0]], title)
        experiment = (await ann.get("/experiments/trial")).json()
        assert (await ann.get(f"/runs/{ids[1]}/outline")).status_code == 503
    await log.aclose()
    assert {case["id"] for case in experiment["cases"]} == {"0", "1", "2"}


class LosingLog(MemoryEventLog):
    """Log that loses the events of a run after its record was listed."""

    lost = ""

    @override
    def follow(self, task_id: str, *args: Any, **options: Any) -> Any:
        if task_id == self.lost:
            raise UnknownRun(task_id)
        return super().follow(task_id, *args, **options)


async def test_run_removed_during_a_request_does_not_prevent_lists() -> None:
    log = LosingLog()
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        ids = [(await ann.post("/runs?wait=10", json={"input": "Go"})).json()["taskId"] for _ in range(3)]
        log.lost = ids[1]
        await check_lists(ann, ids[1], [ids[2], ids[0]], "")


async def test_export_ends_at_an_event_after_a_skipped_event(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    log = SqliteEventLog(path)
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Go"})).json()["taskId"]
    await log.aclose()
    damage(path, task_id, 1)
    log = SqliteEventLog(path, corrupt="skip")
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        lines = (await ann.get(f"/runs/{task_id}/export?until=3")).text.splitlines()
        forms = ("html", "jsonl", "markdown", "case")
        empty = [(await ann.get(f"/runs/{task_id}/export?until=1&form={form}")).status_code for form in forms]
    await log.aclose()
    assert [json.loads(line)["seq"] for line in lines] == [2, 3]
    assert empty == [409] * 4
