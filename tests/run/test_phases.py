"""Attempt phases."""

import re
from pathlib import Path
from typing import Any

import pytest

import rxloop
from rxloop import Agent, MemoryEventLog, RunContext, tool
from rxloop.errors import ContextBusy
from rxloop.run.lifetime import Lifetime, Phase
from rxloop.testing import ScriptedModel, call
from support.runs import outcome


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[Phase]:
    """Phases entered by attempts."""
    entered: list[Phase] = []
    set_attribute = Lifetime.__setattr__

    def record_phase(lifetime: Lifetime, name: str, value: Any) -> None:
        if name == "phase":
            entered.append(value)
        set_attribute(lifetime, name, value)

    monkeypatch.setattr(Lifetime, "__setattr__", record_phase)
    return entered


def test_only_lifecycle_and_attempt_end_change_the_phase() -> None:
    source = Path(rxloop.__file__).parent
    modules = {
        path.name for path in source.rglob("*.py") if re.search(r"\blifetime\.phase = ", path.read_text("utf-8"))
    }
    assert modules == {"attempt_end.py", "lifecycle.py"}


@pytest.mark.parametrize("log", [None, MemoryEventLog()])
async def test_completed_run_enters_all_phases(log: MemoryEventLog | None, phases: list[Phase]) -> None:
    @tool
    async def where(ctx: RunContext) -> str:
        """Return the current phase."""
        return phases[-1].value

    result = await Agent(ScriptedModel(call("where"), "Done."), tools=[where], log=log).run("Go")

    assert phases == [Phase.NEW, Phase.LOADING, Phase.ANNOUNCING, Phase.OPEN, Phase.CLOSED, Phase.OVER]
    assert result.messages[2].text == "open"


async def test_resume_of_finished_run_does_not_open_an_attempt(phases: list[Phase]) -> None:
    agent = Agent(ScriptedModel("Done."), log=MemoryEventLog())
    first = await agent.run("Go")
    phases.clear()

    assert (await agent.resume(first.task_id)).output == "Done."

    assert phases == [Phase.NEW, Phase.LOADING, Phase.OVER]


async def test_rejected_run_enters_the_refused_phase(phases: list[Phase]) -> None:
    agent = Agent(ScriptedModel("Done."), log=MemoryEventLog())
    run = agent.run("Go", context_id="c")
    run.events.subscribe(lambda event: None)

    second_run = agent.run("Me too", context_id="c")
    phases.clear()
    with pytest.raises(ContextBusy):
        await second_run
    assert Phase.REFUSED in phases

    assert (await outcome(run)).state == "completed"
