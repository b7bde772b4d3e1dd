"""Benchmark of early tool starts, using a real connection."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "early.py"


def test_early_start_overlaps_a_slow_call_with_the_stream() -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "1", "--tokens", "10", "--apart", "10", "--tool", "0.5"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    # The stream continues with three calls of ten chunks, 10 ms each, after the first call.
    assert first["usual"] - first["early"] > 0.1
    assert last["early"] < last["usual"] + 0.2
