"""The cluster that `scripts/cluster` shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/cluster.py"


@pytest.mark.service("postgres")
@pytest.mark.timeout(300)
@pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="takes long: set RXLOOP_CHAOS_KILLS")
def test_it_loses_nothing_while_its_processes_are_killed() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "15", "--kill-every", "4", "--every", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker 3" in done.stdout
