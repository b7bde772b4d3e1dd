"""The benchmark of the early start runs, over a real connection, and shows the time that is won."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "early.py"


def test_the_slow_call_is_waited_for_while_the_model_writes() -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "1", "--tokens", "10", "--apart", "10", "--tool", "0.5"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    # Three calls of ten pieces, 10 ms each, are written after the first one.
    assert first["usual"] - first["early"] > 0.1
    assert last["early"] < last["usual"] + 0.2
