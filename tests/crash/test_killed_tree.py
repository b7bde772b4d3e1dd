"""Resuming a tree of thoughts after its process was killed."""

import asyncio
import signal
import sys
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from rxloop import Agent, ContentCompleteEvent, SqliteEventLog
from rxloop.testing import ScriptedModel
from support.crash.thought_tree import CALLS, STRATEGY, answer
from support.strategy_cases import is_legal, list_thoughts, stage_path

PROGRAM = Path(__file__).parents[1] / "support/crash/thought_tree.py"


async def run_until_killed(db: Path, number: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, db, str(number), stdout=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [2, 4, 7, CALLS])
async def test_killed_tree_of_thoughts_repeats_no_completed_call(number: int, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    await run_until_killed(db, number)
    async with aclosing(SqliteEventLog(db)) as log:
        (record,) = await log.list_runs(unfinished=True)
        before = await log.read(record.task_id)
        completed_steps = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
        model = ScriptedModel(*[answer] * CALLS)
        result = await Agent(model, strategy=STRATEGY, log=log).resume(record.task_id)
        events = await log.read(record.task_id)
    # The main branch gets a new step number, because its first step was in flight at the kill.
    assert [request.step for request in model.requests if request.step in completed_steps] == []
    assert len(model.requests) == CALLS - len(completed_steps)
    assert number - 1 - len(completed_steps) <= 3, "only calls after the last checkpoint may be lost"
    assert result.output == "Twice to the left."
    assert is_legal(stage_path(events), "tree_of_thoughts")
    assert max(Counter(thought.thought_id for thought in list_thoughts(events)).values()) == 1
