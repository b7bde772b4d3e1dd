"""Custom run ids are unique."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, SqliteEventLog
from rxloop.agents import derive_id
from rxloop.errors import RunExists
from rxloop.testing import ScriptedModel, frames

ID = "6f9619ff-8b86-4011-b42d-00c04fc964ff"


async def test_run_has_the_requested_id() -> None:
    result = await Agent(ScriptedModel("Hi")).run("Hello", task_id=ID)

    assert result.task_id == ID


@pytest.mark.parametrize("invalid_id", ["", "mine", ID.upper(), ID.replace("-", ""), f"{{{ID}}}", UUID(ID), 7])
async def test_run_rejects_id_that_is_not_a_canonical_uuid(invalid_id: object) -> None:
    with pytest.raises(ConfigurationError, match="task_id must be a"):
        Agent(ScriptedModel()).run("Hello", task_id=invalid_id)  # pyright: ignore[reportArgumentType]


async def test_id_of_a_recorded_run_is_rejected_without_a_model_call() -> None:
    model, log = ScriptedModel("Hi", "never"), MemoryEventLog()
    agent = Agent(model, log=log)
    await agent.run("Hello", task_id=ID)
    before = await log.read(ID)

    with pytest.raises(RunExists, match=rf"run {ID} already exists \(is in the log\)"):
        await agent.run("Hello", task_id=ID).begin()
    with pytest.raises(RunExists):
        await agent.run("Hello", task_id=ID)

    assert len(model.requests) == 1
    assert await log.read(ID) == before


async def test_second_of_two_concurrent_runs_with_the_same_id_is_rejected() -> None:
    model = ScriptedModel(frames("-Hi-|", 0.001), "never")
    agent = Agent(model)
    first, second = agent.run("1", task_id=ID), agent.run("2", task_id=ID)
    first.start()
    second.start()

    with pytest.raises(RunExists, match="is running in this process"):
        await second
    assert (await first).messages[0].text == "1"
    assert len(model.requests) == 1


async def test_run_is_rejected_when_another_process_starts_the_same_id_first(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    model = ScriptedModel("mine")

    class Racing(SqliteEventLog):
        """Log that lets another process write this run after lookup."""

        def append_now(self, *args: Any, **options: Any) -> bool:
            if not (tmp_path / "other").exists():
                (tmp_path / "other").touch()
                program = (
                    "import rxloop; from rxloop.testing import ScriptedModel;"
                    f"log = rxloop.SqliteEventLog({str(path)!r});"
                    "agent = rxloop.Agent(ScriptedModel('theirs'), log=log);"
                    f"agent.run_sync('Hello', task_id={ID!r})"
                )
                subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
            return super().append_now(*args, **options)

    log = Racing(path)
    with pytest.raises(RunExists, match="was just started elsewhere"):
        await Agent(model, log=log).run("Hello", task_id=ID)

    assert model.requests == []
    assert (await Agent(model, log=log).resume(ID)).output == "theirs"
    await log.aclose()


async def test_run_is_rejected_when_another_log_object_executes_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    first = Agent(ScriptedModel(frames("-theirs-" + "-" * 20 + "|", 0.01)), log=SqliteEventLog(path))

    class Racing(SqliteEventLog):
        """Log that starts another run after lookup."""

        running: Any = None

        def append_now(self, *args: Any, **options: Any) -> bool:
            return self.running is not None and super().append_now(*args, **options)

        async def append(self, *args: Any, **options: Any) -> None:
            if self.running is None:
                self.running = await first.run("Hello", task_id=ID).begin()
            await super().append(*args, **options)

    log = Racing(path)
    model = ScriptedModel("mine")
    with pytest.raises(RunExists, match="was just started elsewhere"):
        await Agent(model, log=log).run("Hello", task_id=ID)

    assert model.requests == []
    assert (await log.running).state == "completed"
    for log_object in (first.log, log):
        assert log_object is not None
        await log_object.aclose()


async def test_run_can_be_resumed_by_its_chosen_id() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(frames("--"), "Hi"), log=log)
    async with agent.run("Hello", task_id=ID) as run:
        await run.begin()

    assert (await agent.resume(ID)).output == "Hi"


def test_derive_id_is_deterministic() -> None:
    assert derive_id("batch", "7") == "74ebce93-f291-5d39-a912-3eb4b20c3589"


def test_derive_id_distinguishes_the_parts_of_a_key() -> None:
    keys = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("", "abc"), ('a", "bc',), ("\ud800",)]

    assert len({derive_id(*key) for key in keys}) == len(keys)


async def test_derived_id_is_a_valid_task_id() -> None:
    result = await Agent(ScriptedModel("Hi")).run("Hello", task_id=derive_id("request-17"))

    assert str(UUID(result.task_id)) == result.task_id != str(uuid4())
