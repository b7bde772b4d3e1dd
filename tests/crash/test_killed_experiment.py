"""Experiments that continue in another process after a kill, without repeating finished requests."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from rxloop import ContentCompleteEvent, SqliteEventLog
from rxloop.evals import Report
from support.crash.experiment import CASES, CONCURRENCY, VARIANTS

PROGRAM = Path(__file__).parents[1] / "support/crash/experiment.py"
TRIALS = CASES * len(VARIANTS)


async def run_experiment(folder: Path, kill_at: int | None = None) -> int:
    """Run the experiment in a process, kill it after some requests, and return its exit code."""
    process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, folder)
    exited = asyncio.ensure_future(process.wait())
    requests = folder / "asked"
    # The progress is visible only in the files of the process.
    while kill_at is not None and not exited.done():
        if requests.exists() and requests.read_bytes().count(b"\n") >= kill_at:
            process.send_signal(signal.SIGKILL)
            break
        await asyncio.wait([exited], timeout=0.001)
    return await exited


@pytest.mark.timeout(100)
async def test_experiment_killed_three_times_completes_all_trials_and_repeats_few_requests(tmp_path: Path) -> None:
    kills = sorted(random.Random(3).sample(range(4, TRIALS + 8), 3))
    for kill_at in kills:
        assert await run_experiment(tmp_path, kill_at) == -signal.SIGKILL
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            completed_steps = {
                (record.task_id, event.step)
                for record in await log.list_runs()
                for event in await log.read(record.task_id)
                if isinstance(event, ContentCompleteEvent)
            }
        assert completed_steps
    assert await run_experiment(tmp_path) == 0

    report = Report.from_json((tmp_path / "report.json").read_bytes())
    assert len(report.trials) == TRIALS
    # Interrupted tools are not called again. A kill interrupts at most CONCURRENCY runs.
    interrupted = [trial for trial in report.trials if trial.content != "charged"]
    assert len(interrupted) <= CONCURRENCY * len(kills)
    assert all("interrupted" in trial.content for trial in interrupted)
    assert {trial.scores["called"].value for trial in report.trials} == {True}
    assert {trial.scores["judge"].value for trial in report.trials} == {True}

    # Only requests in flight at a kill may be repeated.
    effects = (tmp_path / "effects").read_text().splitlines()
    assert max(Counter(effects).values()) == 1
    requests = Counter((tmp_path / "asked").read_text().splitlines())
    repeated = {request: count for request, count in requests.items() if count > 1}
    assert len(requests) == 2 * TRIALS
    assert sum(repeated.values()) - len(repeated) <= CONCURRENCY * len(kills)
    judgements = Counter((tmp_path / "judged").read_text().splitlines())
    assert sum(judgements.values()) <= TRIALS + CONCURRENCY * len(kills)


async def test_finished_experiment_makes_no_requests(tmp_path: Path) -> None:
    assert await run_experiment(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*[a-z]") if path.suffix != ".db"}
    assert await run_experiment(tmp_path) == 0
    for name in ("asked", "effects", "judged"):
        assert (tmp_path / name).read_bytes() == before[name]
    first, repeated = (
        Report.from_json(text) for text in (before["report.json"], (tmp_path / "report.json").read_bytes())
    )
    assert repeated.trials == first.trials
