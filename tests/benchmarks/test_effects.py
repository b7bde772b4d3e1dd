"""Crash benchmark with rxloop. The programs of other frameworks are only compiled."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted((BENCHMARKS / "crashes").glob("with_*.py"))
LOOK_UP = ("lookup_order", "bank: order A-7, 20 paid, refund open, write_note open")
UNKNOWN = ("refund", "effect unknown")


@pytest.fixture
def effects(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("effects")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("crashes.services").Ledger()


def test_killed_runs_of_rxloop_finish_without_repeated_effects(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    # With this seed, processes are killed after 54 to 82 % of a run, when the refund has usually started.
    options = ["--only", "rxloop", "rxloop-key", "--kills", "2", "--seed", "57", "--jobs", "2"]
    latencies = ["--model-ms", "5", "--tool-ms", "150"]
    command = [sys.executable, str(BENCHMARKS / "effects.py"), *options, *latencies, "--json", str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text())["rows"]

    assert [row["kills"] for row in rows.values()] == [2, 2]
    for row in rows.values():
        assert [row.get(name, 0) for name in ("double_refunds", "double_notes", "unfinished")] == [0, 0, 0]
    # Calls with a key are repeated, so they are never lost.
    assert [rows["rxloop-key"].get(name, 0) for name in ("missing_refunds", "missing_notes", "told")] == [0, 0, 0]
    assert "| rxloop, key " in done.stdout


@pytest.mark.parametrize(
    ("refunds", "notes", "output", "faults"),
    [
        (1, 1, "done", {}),
        (2, 0, "done", {"double_refunds": 1, "missing_notes": 1}),
        (0, 3, None, {"missing_refunds": 1, "double_notes": 1, "unfinished": 1}),
    ],
)
def test_faults_of_a_run_are_counted(
    effects: Any, refunds: int, notes: int, output: str | None, faults: dict[str, int]
) -> None:
    counts = {"effects": {"refund": refunds, "write_note": notes}, "requests": 4, "interrupted": {}, "notices": {}}
    outcome = effects.Outcome(0.1, output=output)

    assert +effects.count(counts, outcome) == {"kills": 1, **faults}


def test_bank_executes_duplicates_without_a_key(ledger: Any) -> None:
    for key in (None, None, "a", "a"):
        ledger.apply("refund", key)

    assert ledger.effects == {"refund": 3}


@pytest.mark.parametrize(
    ("checks", "results", "tool"),
    [
        (False, [LOOK_UP, UNKNOWN], "write_note"),
        (True, [LOOK_UP, UNKNOWN], "lookup_order"),
        (True, [LOOK_UP, UNKNOWN, LOOK_UP], "refund"),
        (True, [LOOK_UP, UNKNOWN, ("lookup_order", "bank: refund done, write_note open")], "write_note"),
    ],
)
def test_model_handles_an_unknown_effect_by_its_policy(
    ledger: Any, checks: bool, results: list[tuple[str, str]], tool: str
) -> None:
    assert ledger.decide(results, checks) == tool
    assert ledger.notices == {"refund": "effect unknown"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_of_each_framework_has_a_run_function(program: Path) -> None:
    tree = ast.parse(program.read_text(encoding="utf-8"))

    assert "run" in {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}


def test_each_program_has_a_row(effects: Any) -> None:
    assert {row.program for row in effects.ROWS.values()} == {program.stem for program in PROGRAMS}
