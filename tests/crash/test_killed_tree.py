"""A tree of thoughts whose process is killed goes on in another one."""

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

GROWER = Path(__file__).parents[1] / "support/crash/thought_tree.py"


async def killed(db: Path, number: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, GROWER, db, str(number), stdout=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [2, 4, 7, CALLS])
async def test_it_does_not_ask_again_what_it_had_been_told(number: int, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    await killed(db, number)
    async with aclosing(SqliteEventLog(db)) as log:
        (record,) = await log.list_runs(unfinished=True)
        before = await log.read(record.task_id)
        told = {event.step for event in before if isinstance(event, ContentCompleteEvent)}
        model = ScriptedModel(*[answer] * CALLS)
        result = await Agent(model, strategy=STRATEGY, log=log).resume(record.task_id)
        events = await log.read(record.task_id)
    # The main line counts its steps on: its first one was on its way.
    assert [request.step for request in model.requests if request.step in told] == []
    assert len(model.requests) == CALLS - len(told)
    assert number - 1 - len(told) <= 3, "only what was asked in the same round, with no checkpoint since, may be lost"
    assert result.output == "Twice to the left."
    assert is_legal(stage_path(events), "tree_of_thoughts")
    assert max(Counter(thought.thought_id for thought in list_thoughts(events)).values()) == 1
