"""Phases example: analysis, research and design."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rxloop import MemoryEventLog
from rxloop.testing import ScriptedModel, call

PATH = Path(__file__).parents[2] / "examples/phases.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("phases", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_each_phase_reads_the_answer_of_the_previous_run(example: Any) -> None:
    log, model = MemoryEventLog(), example.offline_model()
    results = await example.run_phases(model, log)
    assert [run.task_id for run in await log.list_runs(context_id="move")] == [result.task_id for result in results]
    assert [run.state for run in await log.list_runs(context_id="move")] == ["completed"] * 3
    read = [message.text for message in model.requests[-1].messages]
    assert [result.output in read for result in results] == [True, True, False]
    assert "warning" not in "".join(read)


async def test_thoughts_of_all_phases_form_one_tree(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    await example.main()
    said = capsys.readouterr().out
    assert "[analyze] = " in said
    assert said.count("\n   └─ reasoning copy: ") == 1
    assert "unknown" not in said
    assert "not here" not in said


async def test_last_step_of_a_phase_must_be_an_answer(example: Any) -> None:
    # T51, T52
    looking = [call("search_handbook", topic="size")]
    model = ScriptedModel("?", *[looking] * 14, "Found.", *[looking] * 19, "Made.")
    results = await example.run_phases(model, MemoryEventLog())
    assert [result.output for result in results] == ["?", "Found.", "Made."]
    choices = [request.settings.tool_choice for request in model.requests]
    assert [at for at, choice in enumerate(choices) if choice == "none"] == [0, 15, 35]


async def test_phase_without_an_answer_ends_the_program_with_an_error(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # T51
    model = ScriptedModel("?", *[[call("search_handbook", topic="size")]] * 15)
    results = await example.run_phases(model, MemoryEventLog())
    assert [result.output for result in results] == ["?"]
    assert "[research] no answer: no answer after 15 iterations" in capsys.readouterr().out
