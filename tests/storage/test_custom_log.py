"""Contract and runs of a log that implements only the six required methods."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.errors import ConfigurationError, EventLogError, LogRolledBack
from rxloop.pipeline.event_log import EventLog
from rxloop.testing import ScriptedModel, call, event_log_contract
from rxloop.testing.event_log_contract.toolkit import end, note, start_events, task

EXAMPLE = Path(__file__).parents[2] / "examples/custom_event_log.py"


def _load_example() -> Any:
    spec = importlib.util.spec_from_file_location("custom_event_log", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FolderEventLog = _load_example().FolderEventLog


class MakeFolderLog:
    """Factory that returns a new, empty log at each call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0

    def __call__(self, *, keep_deltas: bool = False) -> EventLog:
        self._count += 1
        folder = self._root / str(self._count)
        folder.mkdir()
        return FolderEventLog(folder)


@pytest.mark.parametrize("check", event_log_contract.CHECKS, ids=lambda check: check.__name__)
async def test_log_with_six_methods_passes_the_contract(tmp_path: Path, check: event_log_contract.Check) -> None:
    await check(MakeFolderLog(tmp_path))


async def test_partial_line_after_a_crash_is_overwritten(tmp_path: Path) -> None:
    log = FolderEventLog(tmp_path)
    await log.append("run", start_events(), expected_seq=0)
    [file] = tmp_path.iterdir()
    with file.open("ab") as lines:
        lines.write(b'{"run": "run", "wri')

    again = FolderEventLog(tmp_path)
    assert [event.seq for event in await again.read("run")] == [1, 2]
    await again.append("run", [note(3)], expected_seq=2)
    assert [event.seq for event in await FolderEventLog(tmp_path).read("run")] == [1, 2, 3]


async def test_follower_detects_that_an_event_was_replaced(tmp_path: Path) -> None:
    log = FolderEventLog(tmp_path)
    await log.append("run", start_events(), expected_seq=0)
    followed = log.follow("run")
    assert [(await anext(followed)).seq for _ in range(2)] == [1, 2]

    [file] = tmp_path.iterdir()
    file.unlink()
    restored = FolderEventLog(tmp_path)
    await restored.append("run", [task(), note(2)], expected_seq=0)
    with pytest.raises(LogRolledBack):
        await anext(followed)


async def test_run_pauses_is_answered_and_continues(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    agent = Agent(ScriptedModel(call("pay", amount=5), "Done."), tools=[pay], log=FolderEventLog(tmp_path))
    paused = await agent.run("Pay.")
    log = agent.log
    assert log is not None
    assert list(await log.list_orphaned()) == []
    await agent.get_run(paused.task_id).answer({paused.pending[0].input_id: True})
    assert [record.task_id for record in await log.list_orphaned()] == [paused.task_id]
    assert (await agent.get_run(paused.task_id).execute()).state == "completed"
    assert paid == [5]


async def test_runtime_executes_runs_and_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(ScriptedModel("One.", "Two."), thoughts=False)
    with caplog.at_level(logging.WARNING, "rxloop"):
        runtime = Runtime({"a": agent}, log=FolderEventLog(tmp_path))
    assert [record.message.split(" has no leases")[0] for record in caplog.records] == ["FolderEventLog"]
    async with runtime:
        records = [await runtime.start("a", "Hi", context_id="c") for _ in range(2)]
        for record in records:
            async for _ in runtime.follow(record.task_id, after=None):
                pass
        assert [(await runtime.get_record(record.task_id)).state for record in records] == ["completed", "completed"]


def test_queue_requires_a_log_that_stores_leases_and_commands(tmp_path: Path) -> None:
    class Queue:
        def enqueue(self) -> None: ...

    queue: Any = Queue()
    with pytest.raises(ConfigurationError, match="acquire_lease"):
        Runtime({"a": Agent(ScriptedModel())}, log=FolderEventLog(tmp_path), queue=queue)


async def test_removal_of_runs_requires_a_log_that_overrides_it(tmp_path: Path) -> None:
    log = FolderEventLog(tmp_path)
    await log.append("run", [*start_events(), end(3)], expected_seq=0)
    with pytest.raises(EventLogError, match="override delete"):
        await log.delete("run")
    with pytest.raises(EventLogError, match="override trim"):
        await log.trim(0)


def test_class_without_a_required_method_cannot_be_created() -> None:
    class Incomplete(EventLog):
        async def aclose(self) -> None: ...

    with pytest.raises(TypeError, match="append"):
        Incomplete()  # type: ignore[abstract]


def test_lease_of_a_closed_event_loop_is_free() -> None:
    log = MemoryEventLog()
    assert asyncio.run(log.acquire_lease("c", "run", lambda: None))
    assert asyncio.run(log.acquire_lease("c", "other", lambda: None))
