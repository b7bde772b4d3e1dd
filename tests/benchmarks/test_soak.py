"""The soak runs, and its verdict tells a leak from none. Whether anything grows takes more runs than these."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("soak")


def samples(of: Any, **grown: float) -> list[dict[str, float]]:
    """Twenty samples, one each hundred runs, in which a figure grows by so much with each run."""
    return [{name: 1e6 + grown.get(name, 0) * run + run % 3 for name in of.LIMITS} for run in range(0, 2_000, 100)]


def test_every_part_of_the_soak_runs(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    counts = ["--runs", "21", "--deltas", "20000", "--conversations", "20"]
    command = [sys.executable, str(BENCHMARKS / "soak.py"), *counts, "--json", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert file.exists(), done.stderr
    report = json.loads(file.read_text())

    assert len(report["runs"]["ended"]) == 21
    for name in ("tasks", "threads"):
        assert report["runs"]["figures"][name]["flat"]
    assert report["deltas"]["deltas"] == 20_000
    assert [part["machinery"] for part in report["idle"].values()] == [{}, {}]
    assert "24 runs" in done.stdout


@pytest.mark.parametrize(
    ("figure", "each"), [("python_bytes", 60.0), ("objects", 1.0), ("files", 0.01), ("tasks", 0.01)]
)
def test_a_small_thing_that_some_runs_leave_behind_is_told(soak: Any, figure: str, each: float) -> None:
    done = [float(run) for run in range(0, 2_000, 100)]
    found = soak.verdict(done, samples(soak, **{figure: each}))

    assert [name for name, told in found.items() if not told["flat"]] == [figure]
    assert found[figure]["per_thousand"] == pytest.approx(each * 1_000, rel=0.05)


def test_one_sample_far_off_is_no_growth(soak: Any) -> None:
    done = [float(run) for run in range(0, 2_000, 100)]
    taken = samples(soak)
    taken[-1]["python_bytes"] += 10_000_000

    assert all(told["flat"] for told in soak.verdict(done, taken).values())


def test_a_contender_that_failed_in_a_round_is_compared_in_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)

    assert import_module("run").ratios([4.0, None, 9.0], [2.0, 1.0, 3.0]) == [2.0, 3.0]


def test_an_environment_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    environments = import_module("environments")
    monkeypatch.setattr(environments.venv, "create", lambda *_args, **_options: None)

    with pytest.raises(environments.CannotInstall, match="python"):
        environments.environment("langgraph", tmp_path)
