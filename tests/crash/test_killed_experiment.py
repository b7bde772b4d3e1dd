"""An experiment whose process is killed goes on in another one, and asks nobody twice who has answered."""

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

EXPERIMENTER = Path(__file__).parents[1] / "support/crash/experiment.py"
TRIALS = CASES * len(VARIANTS)


async def carried_out(folder: Path, kill_at: int | None = None) -> int:
    """Carry it out, and kill it once so many requests have been made; the exit code."""
    process = await asyncio.create_subprocess_exec(sys.executable, EXPERIMENTER, folder)
    ended = asyncio.ensure_future(process.wait())
    asked = folder / "asked"
    # A process tells by its files alone how far it is.
    while kill_at is not None and not ended.done():
        if asked.exists() and asked.read_bytes().count(b"\n") >= kill_at:
            process.send_signal(signal.SIGKILL)
            break
        await asyncio.wait([ended], timeout=0.001)
    return await ended


@pytest.mark.timeout(100)
async def test_an_experiment_that_is_killed_three_times_asks_nobody_twice_who_has_answered(tmp_path: Path) -> None:
    kills = sorted(random.Random(3).sample(range(4, TRIALS + 8), 3))
    for kill_at in kills:
        assert await carried_out(tmp_path, kill_at) == -signal.SIGKILL
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            answered = {
                (record.task_id, event.step)
                for record in await log.list_runs()
                for event in await log.read(record.task_id)
                if isinstance(event, ContentCompleteEvent)
            }
        assert answered
    assert await carried_out(tmp_path) == 0

    report = Report.from_json((tmp_path / "report.json").read_bytes())
    assert len(report.trials) == TRIALS
    # A tool that was cut off is not called again: of each kill so many runs at most may have got to know that.
    cut_off = [trial for trial in report.trials if trial.content != "charged"]
    assert len(cut_off) <= CONCURRENCY * len(kills)
    assert all("interrupted" in trial.content for trial in cut_off)
    assert {trial.scores["called"].value for trial in report.trials} == {True}
    assert {trial.scores["judge"].value for trial in report.trials} == {True}

    # Each effect once; of what was asked, only what was on its way at a kill may be asked again.
    effects = (tmp_path / "effects").read_text().splitlines()
    assert max(Counter(effects).values()) == 1
    asked = Counter((tmp_path / "asked").read_text().splitlines())
    again = {request: count for request, count in asked.items() if count > 1}
    assert len(asked) == 2 * TRIALS
    assert sum(again.values()) - len(again) <= CONCURRENCY * len(kills)
    judged = Counter((tmp_path / "judged").read_text().splitlines())
    assert sum(judged.values()) <= TRIALS + CONCURRENCY * len(kills)


async def test_one_that_is_over_asks_nobody(tmp_path: Path) -> None:
    assert await carried_out(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*[a-z]") if path.suffix != ".db"}
    assert await carried_out(tmp_path) == 0
    for name in ("asked", "effects", "judged"):
        assert (tmp_path / name).read_bytes() == before[name]
    once, again = (Report.from_json(text) for text in (before["report.json"], (tmp_path / "report.json").read_bytes()))
    assert again.trials == once.trials
