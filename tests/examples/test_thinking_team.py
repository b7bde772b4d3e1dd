"""Output of the example with three agents that think at the same time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples/thinking_team.py"


async def test_progress_of_three_agents_is_shown_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("thinking_team", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    await module.main(tmp_path / "sessions.db")
    lines = capsys.readouterr().out.splitlines()

    progress = [line.count("#") for line in lines if line.startswith("architect ")]
    assert progress == list(range(13))
    # The agents think concurrently.
    assert any(f"{name} #" in lines[6] for name in ("architect", "tester"))
    assert "writer #" in lines[6]
    assert "The tester is done." in lines
    assert {line for line in lines if "complete, 4 thoughts" in line} == {
        f"{name}: complete, 4 thoughts, last: The {name}'s step 4." for name in ("architect", "tester", "writer")
    }
