"""Healthy runs next to a run that ends its process, on workers that are restarted at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.workers.cluster import SLOW_CHAOS

pytestmark = pytest.mark.timeout(180)

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "poison.py"


def execute_runs(address: str, **options: object) -> str:
    """Execute one poison run and healthy runs until all have ended, and return the report."""
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run([sys.executable, PROGRAM, address, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def check(report: str, runs: int) -> None:
    assert f"{runs} of {runs} healthy runs completed" in report
    assert "poison run: failed at attempt 4: 3 attempts in a row made no progress" in report


QUICK = {"processes": 2, "runs": 8, "attempts": 3, "step": 0.1}


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("deps", "exit"),
        pytest.param("tool", "kill", marks=SLOW_CHAOS),
        pytest.param("payment", "kill", marks=SLOW_CHAOS),
        pytest.param("start", "exit", marks=SLOW_CHAOS),
        pytest.param("instructions", "segfault", marks=SLOW_CHAOS),
        pytest.param("instructions", "memory", marks=SLOW_CHAOS),
        pytest.param("toolset", "exit", marks=SLOW_CHAOS),
        pytest.param("stream", "kill", marks=SLOW_CHAOS),
        pytest.param("deps", "memory", marks=SLOW_CHAOS),
        pytest.param("deps", "sys-exit", marks=SLOW_CHAOS),
    ],
)
def test_poison_run_fails_and_healthy_runs_complete_on_sqlite(tmp_path: Path, place: str, how: str) -> None:
    check(execute_runs(str(tmp_path / "runs.db"), place=place, how=how, **QUICK), runs=8)


@pytest.mark.service("postgres")
@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("tool", "kill"),
        pytest.param("deps", "exit", marks=SLOW_CHAOS),
        pytest.param("stream", "segfault", marks=SLOW_CHAOS),
    ],
)
def test_poison_run_fails_and_healthy_runs_complete_on_postgres(dsn: str, place: str, how: str) -> None:
    check(execute_runs(dsn, place=place, how=how, **QUICK), runs=8)


@SLOW_CHAOS
@pytest.mark.service("postgres")
def test_fifty_healthy_runs_complete_next_to_three_poison_runs(dsn: str) -> None:
    report = execute_runs(dsn, place="tool", how="kill", poison=3, attempts=5)
    assert "50 of 50 healthy runs completed" in report
    assert report.count("poison run: failed at attempt 6") == 3


@SLOW_CHAOS
def test_healthy_runs_complete_if_another_run_calls_sys_exit(tmp_path: Path) -> None:
    report = execute_runs(str(tmp_path / "runs.db"), place="stream", how="sys-exit", **QUICK)
    assert "8 of 8 healthy runs completed" in report
    assert "poison run: failed" in report
