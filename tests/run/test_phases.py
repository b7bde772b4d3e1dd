"""The phases of an attempt: one after the other, and moved by one file."""

import re
from pathlib import Path
from typing import Any

import pytest

import rxloop
from rxloop import Agent, MemoryEventLog, RunContext, tool
from rxloop.errors import ContextBusy
from rxloop.run.life import Life, Phase
from rxloop.testing import ScriptedModel, call
from support.runs import outcome


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[Phase]:
    """The phases that attempts come to, in order."""
    seen: list[Phase] = []
    plain = Life.__setattr__

    def noting(life: Life, name: str, value: Any) -> None:
        if name == "phase":
            seen.append(value)
        plain(life, name, value)

    monkeypatch.setattr(Life, "__setattr__", noting)
    return seen


def test_only_the_life_cycle_and_the_end_move_an_attempt_to_another_phase() -> None:
    source = Path(rxloop.__file__).parent
    moving = {path.name for path in source.rglob("*.py") if re.search(r"\blife\.phase = ", path.read_text("utf-8"))}
    assert moving == {"attempt_end.py", "lifecycle.py"}


@pytest.mark.parametrize("log", [None, MemoryEventLog()])
async def test_a_run_goes_through_all_phases(log: MemoryEventLog | None, phases: list[Phase]) -> None:
    @tool
    async def where(ctx: RunContext) -> str:
        """Where it stands."""
        return phases[-1].value

    result = await Agent(ScriptedModel(call("where"), "Done."), tools=[where], log=log).run("Go")

    assert phases == [Phase.NEW, Phase.LOADING, Phase.ANNOUNCING, Phase.OPEN, Phase.CLOSED, Phase.OVER]
    assert result.messages[2].text == "open"


async def test_a_run_that_is_over_is_told_again_without_being_begun(phases: list[Phase]) -> None:
    agent = Agent(ScriptedModel("Done."), log=MemoryEventLog())
    first = await agent.run("Go")
    phases.clear()

    assert (await agent.resume(first.task_id)).output == "Done."

    assert phases == [Phase.NEW, Phase.LOADING, Phase.OVER]


async def test_a_run_that_is_refused_never_begins(phases: list[Phase]) -> None:
    agent = Agent(ScriptedModel("Done."), log=MemoryEventLog())
    run = agent.run("Go", context_id="c")
    run.events.subscribe(lambda event: None)

    other = agent.run("Me too", context_id="c")
    phases.clear()
    with pytest.raises(ContextBusy):
        await other
    assert Phase.REFUSED in phases

    assert (await outcome(run)).state == "completed"
