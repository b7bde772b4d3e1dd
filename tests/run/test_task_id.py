"""A run under an id of one's own: there is never a second run of the same id."""

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


async def test_a_run_has_the_id_that_it_was_given() -> None:
    result = await Agent(ScriptedModel("Hi")).run("Hello", task_id=ID)

    assert result.task_id == ID


@pytest.mark.parametrize("wrong", ["", "mine", ID.upper(), ID.replace("-", ""), f"{{{ID}}}", UUID(ID), 7])
async def test_what_is_not_a_uuid_in_its_usual_form_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="task_id="):
        Agent(ScriptedModel()).run("Hello", task_id=wrong)  # pyright: ignore[reportArgumentType]


async def test_an_id_that_the_log_has_is_refused_before_anything_is_asked() -> None:
    model, log = ScriptedModel("Hi", "never"), MemoryEventLog()
    agent = Agent(model, log=log)
    await agent.run("Hello", task_id=ID)
    before = await log.read(ID)

    with pytest.raises(RunExists, match=f"the run {ID} exists, it is in the log"):
        await agent.run("Hello", task_id=ID).begin()
    with pytest.raises(RunExists):
        await agent.run("Hello", task_id=ID)

    assert len(model.requests) == 1
    assert await log.read(ID) == before


async def test_of_two_that_are_started_together_the_first_is_the_run() -> None:
    model = ScriptedModel(frames("-Hi-|", 0.001), "never")
    agent = Agent(model)
    first, second = agent.run("1", task_id=ID), agent.run("2", task_id=ID)
    first.start()
    second.start()

    with pytest.raises(RunExists, match="goes on in this process"):
        await second
    assert (await first).messages[0].text == "1"
    assert len(model.requests) == 1


async def test_who_is_a_moment_later_than_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    model = ScriptedModel("mine")

    class Racing(SqliteEventLog):
        """Another process writes the run just after it was looked for."""

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
    with pytest.raises(RunExists, match="was begun elsewhere at the same moment"):
        await Agent(model, log=log).run("Hello", task_id=ID)

    assert model.requests == []
    assert (await Agent(model, log=log).resume(ID)).output == "theirs"
    await log.aclose()


async def test_a_run_that_another_log_object_executes_at_the_same_moment_exists(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    first = Agent(ScriptedModel(frames("-theirs-" + "-" * 20 + "|", 0.01)), log=SqliteEventLog(path))

    class Racing(SqliteEventLog):
        """The other run begins, and goes on, just after it was looked for."""

        running: Any = None

        def append_now(self, *args: Any, **options: Any) -> bool:
            return self.running is not None and super().append_now(*args, **options)

        async def append(self, *args: Any, **options: Any) -> None:
            if self.running is None:
                self.running = await first.run("Hello", task_id=ID).begin()
            await super().append(*args, **options)

    log = Racing(path)
    model = ScriptedModel("mine")
    with pytest.raises(RunExists, match="was begun elsewhere at the same moment"):
        await Agent(model, log=log).run("Hello", task_id=ID)

    assert model.requests == []
    assert (await log.running).state == "completed"
    for each in (first.log, log):
        assert each is not None
        await each.aclose()


async def test_a_run_that_exists_can_be_resumed_under_its_id() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(frames("--"), "Hi"), log=log)
    async with agent.run("Hello", task_id=ID) as run:
        await run.begin()

    assert (await agent.resume(ID)).output == "Hi"


def test_a_key_is_the_same_id_in_every_process() -> None:
    assert derive_id("batch", "7") == "74ebce93-f291-5d39-a912-3eb4b20c3589"


def test_parts_of_a_key_are_not_joined() -> None:
    keys = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("", "abc"), ('a", "bc',), ("\ud800",)]

    assert len({derive_id(*key) for key in keys}) == len(keys)


async def test_a_key_makes_an_id_for_a_run() -> None:
    result = await Agent(ScriptedModel("Hi")).run("Hello", task_id=derive_id("request-17"))

    assert str(UUID(result.task_id)) == result.task_id != str(uuid4())
