"""Soak test and its leak detection. Actual leaks can only be found with more runs."""

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


def make_samples(of: Any, **grown: float) -> list[dict[str, float]]:
    """Return 20 samples at intervals of 100 runs, with linear growth of a metric."""
    return [{name: 1e6 + grown.get(name, 0) * run + run % 3 for name in of.LIMITS} for run in range(0, 2_000, 100)]


def test_all_soak_parts_run(tmp_path: Path) -> None:
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
    ("figure", "growth"), [("python_bytes", 60.0), ("objects", 1.0), ("files", 0.01), ("tasks", 0.01)]
)
def test_small_leak_is_detected(soak: Any, figure: str, growth: float) -> None:
    done = [float(run) for run in range(0, 2_000, 100)]
    verdicts = soak.verdict(done, make_samples(soak, **{figure: growth}))

    assert [name for name, metric in verdicts.items() if not metric["flat"]] == [figure]
    assert verdicts[figure]["per_thousand"] == pytest.approx(growth * 1_000, rel=0.05)


def test_single_outlier_is_not_growth(soak: Any) -> None:
    done = [float(run) for run in range(0, 2_000, 100)]
    samples = make_samples(soak)
    samples[-1]["python_bytes"] += 10_000_000

    assert all(metric["flat"] for metric in soak.verdict(done, samples).values())


def test_contender_that_failed_in_a_round_is_compared_in_other_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)

    assert import_module("run").ratios([4.0, None, 9.0], [2.0, 1.0, 3.0]) == [2.0, 3.0]


def test_environment_error_contains_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    environments = import_module("environments")
    monkeypatch.setattr(environments.venv, "create", lambda *_args, **_options: None)

    with pytest.raises(environments.CannotInstall, match="python"):
        environments.environment("langgraph", tmp_path)
