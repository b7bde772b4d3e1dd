"""Compression benchmark on real transcripts, which are not part of this repository."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
BENCH = SHARED / "tools" / "compression_bench.py"
TRANSCRIPTS = SHARED / "corpus" / "transcripts"
needs_transcripts = pytest.mark.skipif(
    not (BENCH.is_file() and TRANSCRIPTS.is_dir()),
    reason="the benchmark and its transcripts are not in ../shared, beside this repository",
)


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Annotations are resolved through `sys.modules`.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> Any:
    return _load("compression_bench", BENCH)


@pytest.fixture(scope="module")
def rows(bench: Any) -> list[dict[str, Any]]:
    return bench.prepare(bench.load(TRANSCRIPTS, None))


# Minimum recall, minimum far recall and maximum cost, at 25 % and 50 % of the history.
@needs_transcripts
@pytest.mark.parametrize(
    ("name", "recall", "far", "cost"),
    [
        ("sliding_window", (0.93, 0.98), (0.81, 0.92), (0.58, 0.75)),
        ("semantic", (0.91, 0.98), (0.74, 0.93), (0.62, 0.78)),
        ("token_budget", (0.91, 0.98), (0.72, 0.93), (0.60, 0.76)),
        ("chained", (0.91, 0.98), (0.72, 0.93), (0.60, 0.76)),
    ],
)
@pytest.mark.parametrize("index", [0, 1], ids=["a quarter", "a half"])
def test_compressors_keep_the_values_that_agents_needed(
    bench: Any,
    rows: list[dict[str, Any]],
    name: str,
    recall: tuple[float, float],
    far: tuple[float, float],
    cost: tuple[float, float],
    index: int,
) -> None:
    adapter = _load("rxloop_compression", ROOT / "benchmarks" / "compression.py")
    scores = bench.evaluate(getattr(adapter, name), rows, (0.25, 0.5)[index], 0.2)
    assert scores["why"] == {}
    assert scores["valid"] == 1.0
    assert scores["recall"] >= recall[index]
    assert scores["far"] >= far[index]
    assert scores["linked"] >= recall[index] - 0.03
    assert scores["cost"] <= cost[index]
